"""`cinquefoil plan dry-run|explain|diff`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, LAST_VERSION, Config, Json


class Goal(StrEnum):
    """What a good plan is."""

    CLOVER = "clover"
    FEWEST_GPUS = "fewest-gpus"
    INFADAPTER = "infadapter"


async def dry_run(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    demand: Annotated[
        list[str] | None, typer.Option(metavar="MODEL=RPS", help="Demand; repeatable.")
    ] = None,
    intensity: Annotated[
        list[str] | None,
        typer.Option(metavar="ZONE=GRAMS", help="Carbon intensity, gCO2e/kWh; repeatable."),
    ] = None,
    carbon_weight: Annotated[
        float | None, typer.Option(help="0: accuracy alone counts; 1: carbon alone.")
    ] = None,
    accuracy_floor: Annotated[
        float | None, typer.Option(help="Least mean accuracy relative to the best variant, 0..1.")
    ] = None,
    strategy: Annotated[str, typer.Option(help="See `plan strategies`.")] = "",
    objective: Annotated[
        Goal | None, typer.Option(help="What alone counts, instead of the configured goals.")
    ] = None,
    without_gpu: Annotated[
        list[str] | None, typer.Option(metavar="UUID", help="A GPU taken away; repeatable.")
    ] = None,
    add_gpus: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE:NODE:COUNT", help="GPUs added to a node; repeatable."),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Carry the plan out at once.")] = False,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Show what would be decided now, or under other circumstances, and why. Changes nothing.

    What is not given is as it is. The plan can be applied for 10 minutes, unless demand, intensity
    or GPUs were made up.

    For example:

    - `cinquefoil plan dry-run`
    - `cinquefoil plan dry-run --demand digits=200 --intensity US-CAL=50`
    - `cinquefoil plan dry-run --carbon-weight 0.9 --accuracy-floor 0.98 --apply`
    - `cinquefoil plan dry-run --add-gpus a100-40gb:node-0:2 --objective fewest-gpus`
    """
    from services.cli.plan.questions import dry_run as ask
    from services.cli.plan.what_if import what_if

    asked = what_if(
        demand=demand or (),
        intensity=intensity or (),
        carbon_weight=carbon_weight,
        accuracy_floor=accuracy_floor,
        strategy=strategy,
        goal=objective.value if objective else "",
        without_gpus=without_gpu or (),
        added_gpus=add_gpus or (),
    )
    await ask(config, asked, apply=apply, as_json=json)


async def explain(
    version: Annotated[
        int, typer.Argument(min=0, max=LAST_VERSION, help="Plan version; 0: the newest.")
    ] = 0,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Explain a plan: what binds it, what it promises, the runner-up, and BASE beside it."""
    from services.cli.plan.questions import explain as ask

    await ask(config, version=version, as_json=json)


async def diff(
    from_version: Annotated[
        int,
        typer.Argument(
            min=0, max=LAST_VERSION, metavar="FROM", help="Plan version; 0: the active one."
        ),
    ] = 0,
    to_version: Annotated[
        int,
        typer.Argument(min=0, max=LAST_VERSION, metavar="TO", help="Plan version; 0: the newest."),
    ] = 0,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Show what changes from one plan to another: segments, shares, clocks, and what they promise.

    For example:

    - `cinquefoil plan diff 7`: plan 7 and the newest
    - `cinquefoil plan diff 7 8`
    """
    from services.cli.plan.questions import diff as ask

    await ask(config, from_version, to_version, as_json=json)

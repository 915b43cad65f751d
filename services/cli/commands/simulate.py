"""`cinquefoil simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cli.commands.options import Json


def simulate(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    scenario: Annotated[Path, typer.Argument(help="Scenario file.")],
    out: Annotated[Path, typer.Option(help="Folder for JSON, plots and the HTML report.")] = Path(
        "out/simulate"
    ),
    strategy: Annotated[
        list[str] | None,
        typer.Option(help="Policy of the scenario, or any strategy; may be repeated."),
    ] = None,
    detail: Annotated[
        Literal["full", "sampled"] | None,
        typer.Option(
            help="Simulate every request, or sampled intervals. Default: as the scenario says."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Random seed. Default: the scenario's.")
    ] = None,
    json: Json = False,
) -> None:
    """Simulate days of grid and load in virtual time, with the code that runs live.

    The planner's strategies, triggers, placement and rollouts, the router's queue and choice of
    instances, and the workers' batching are the suite's own; GPUs are simulated from the profiles.
    """
    from services.cli.simulate.run import simulate as work

    work(scenario, out, strategy or (), as_json=json, detail=detail, seed=seed)

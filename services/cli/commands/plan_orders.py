"""`cinquefoil plan apply|pin|unpin|rollback`."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.commands.options import LAST_VERSION, Config, Json


def apply(
    proposal_id: Annotated[str, typer.Argument(help="As `plan dry-run` printed it.")],
    config: Config = None,
    json: Json = False,
) -> None:
    """Carry out the plan of a dry run.

    A proposal is valid for 10 minutes, and only while what runs is what it was made for.
    """
    from services.cli.plan.orders import apply_proposal
    from services.cli.runner import run
    from services.kit.config.loader import config_path

    run(apply_proposal(config_path(config), proposal_id, as_json=json))


def pin(
    version: Annotated[
        int, typer.Argument(min=0, max=LAST_VERSION, help="The active plan; 0: whichever is.")
    ] = 0,
    config: Config = None,
    json: Json = False,
) -> None:
    """Hold the active plan: nothing is planned anew until `plan unpin`, over restarts too."""
    from services.cli.plan.orders import pin_plan
    from services.cli.runner import run
    from services.kit.config.loader import config_path

    run(pin_plan(config_path(config), version, as_json=json))


def unpin(config: Config = None, json: Json = False) -> None:
    """Let the planner plan anew by itself again."""
    from services.cli.plan.orders import unpin_plan
    from services.cli.runner import run
    from services.kit.config.loader import config_path

    run(unpin_plan(config_path(config), as_json=json))


def rollback(
    version: Annotated[int, typer.Argument(min=1, max=LAST_VERSION, help="Version to go back to.")],
    config: Config = None,
    json: Json = False,
) -> None:
    """Carry an earlier plan out again, as a new version, and pin it."""
    from services.cli.plan.orders import roll_back
    from services.cli.runner import run
    from services.kit.config.loader import config_path

    run(roll_back(config_path(config), version, as_json=json))

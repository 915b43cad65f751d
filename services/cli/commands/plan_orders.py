"""`cinquefoil plan apply|pin|unpin|rollback`."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, LAST_VERSION, Config, Json


async def apply(
    proposal_id: Annotated[str, typer.Argument(help="As `plan dry-run` printed it.")],
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Carry out the plan of a dry run.

    A proposal is valid for 10 minutes, and only while what runs is what it was made for.
    """
    from services.cli.plan.orders import apply_proposal

    await apply_proposal(config, proposal_id, as_json=json)


async def pin(
    version: Annotated[
        int, typer.Argument(min=0, max=LAST_VERSION, help="The active plan; 0: whichever is.")
    ] = 0,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Hold the active plan: nothing is planned anew until `plan unpin`, over restarts too."""
    from services.cli.plan.orders import pin_plan

    await pin_plan(config, version, as_json=json)


async def unpin(config: Config = DEPLOYMENT, json: Json = False) -> None:
    """Let the planner plan anew by itself again."""
    from services.cli.plan.orders import unpin_plan

    await unpin_plan(config, as_json=json)


async def rollback(
    version: Annotated[int, typer.Argument(min=1, max=LAST_VERSION, help="Version to go back to.")],
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Carry an earlier plan out again, as a new version, and pin it."""
    from services.cli.plan.orders import roll_back

    await roll_back(config, version, as_json=json)

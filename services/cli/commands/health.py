"""`cinquefoil health`."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config


async def health(
    service: Annotated[
        str, typer.Argument(help="carbon, planner, predictor, router, or a node's name.")
    ],
    config: Config = DEPLOYMENT,
) -> None:
    """Check that one service serves (grpc.health.v1); exit status 1 where it does not."""
    from services.cli.health import check

    await check(config, service)

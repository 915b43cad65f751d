"""`cinquefoil up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config


async def up(
    config: Config = DEPLOYMENT,
    logs: Annotated[
        Path | None, typer.Option(help="Folder of the services' logs. Default: out/logs.")
    ] = None,
) -> None:
    """Start every service of the deployment here and keep it running; ctrl-c stops it.

    Each service is a process of its own and is restarted when it crashes. Models of the demo that
    the file names and that do not exist yet are trained first.
    """
    from services.cli.up.run import up as work

    await work(config, logs or config.parent / "out/logs")

"""`cinquefoil status`."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json


async def status(
    config: Config = DEPLOYMENT,
    json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until ctrl-c.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between refreshes.")] = 1.0,
) -> None:
    """Show zones, GPUs with their slices, models with their variants, energy and carbon.

    A service that does not answer is named, and the other services' part is shown; the exit status
    is then 1.
    """
    from services.cli.status.show import follow, show

    if watch:
        await follow(config, as_json=json, interval_s=interval)
    elif not await show(config, as_json=json):
        raise typer.Exit(1)

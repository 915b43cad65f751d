"""`cinquefoil up`: starts a suite, says where it is, and stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from services.cli.up.render import endpoint_table, hints, processes
from services.kit.config.loader import load
from services.local.demo import demo_models
from services.local.up.health import until_answering
from services.local.up.ports import refuse_taken
from services.local.up.suite import Suite

_REFRESH_S = 0.5


async def up(config: Path, logs: Path) -> None:
    """Run the deployment until cancelled.

    Raises:
        ConfigError: The file is wrong.
        ServiceError: An address is taken, or a service could not be started; the message quotes its
            log.
    """
    console = Console()
    deployment = load(config)
    refuse_taken(deployment)
    await asyncio.to_thread(demo_models.train_missing, deployment, console.print)
    suite = Suite.of(config, logs)
    console.print(f"Starting {', '.join(suite.members)}; logs in {logs}/", highlight=False)
    try:
        async with suite:
            with console.status("Waiting for the first plan"):
                await until_answering(deployment.router.dial, deployment.identity("operator"))
            console.print(endpoint_table(deployment))
            console.print(Text(hints(deployment)), soft_wrap=True)
            await _stay(console, suite)
    except asyncio.CancelledError:
        # The border: cancelled is how a person or an init system ends this command.
        console.print("Stopped; no process is left.")


async def _stay(console: Console, suite: Suite) -> None:
    if not console.is_terminal:
        while True:
            await suite.watch(_REFRESH_S)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(processes(suite), refresh=True)
            await suite.watch(_REFRESH_S)

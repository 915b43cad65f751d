"""How a service process starts, and how it ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from services.kit import logs
from services.kit.deployment import Deployment
from services.kit.rpc import serve_until
from services.kit.settings import ConfigError, config_path, load

Run = Callable[[Deployment, asyncio.Event], Awaitable[None]]
"""A service: runs until the event is set, drains, returns."""


def launch(service: str, run: Run, config: Path | None = None) -> int:
    """Run one service until SIGTERM or SIGINT; return the exit status.

    Args:
        service: Its name, for logs.
        run: The service's composition root.
        config: Deployment file; see `services.kit.settings.config_path`.

    Returns:
        0 after a drain, 2 where the deployment file is wrong. A crash raises.
    """
    try:
        deployment = load(config_path(config))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logs.configure(service, level=deployment.log_level)
    logs.get("service").info("settings", settings=deployment.model_dump(mode="json"))
    uvloop.run(_until_stopped(run, deployment))
    return 0


async def _until_stopped(run: Run, deployment: Deployment) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        signals = tasks.create_task(serve_until(stop), name="signals")
        await run(deployment, stop)
        stop.set()
        await signals

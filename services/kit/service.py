"""How a service process starts, and how it ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
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
        0 after a drain, 2 where the deployment file, or one that it names, is wrong. A crash
        raises.
    """
    status = 0
    try:
        deployment = load(config_path(config))
        logs.configure(service, level=deployment.log_level)
        logs.get("service").info("settings", settings=deployment.model_dump(mode="json"))
        uvloop.run(_until_stopped(run, deployment))
    except* ConfigError as wrong:
        sys.stderr.writelines(f"{error}\n" for error in _leaves(wrong))
        status = 2
    return status


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield what a tree of exception groups holds."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


async def _until_stopped(run: Run, deployment: Deployment) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        signals = tasks.create_task(serve_until(stop), name="signals")
        await run(deployment, stop)
        stop.set()
        await signals

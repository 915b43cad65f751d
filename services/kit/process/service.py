"""Start and end of a service process."""

import asyncio
import os
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Protocol

import uvloop

from services.kit import descriptors
from services.kit.clock import RealClock
from services.kit.config import Deployment
from services.kit.config.loader import ConfigError, config_path, load
from services.kit.errors import ServiceError, leaves
from services.kit.process import systemd
from services.kit.process.memory import collect_rarely
from services.kit.process.reload import Reloads
from services.kit.rpc import serve_until
from services.kit.telemetry import export, logs


class Run(Protocol):
    """A service: runs until the event is set, drains, returns."""

    def __call__(
        self, deployment: Deployment, stop: asyncio.Event, *, reloads: Reloads
    ) -> Awaitable[None]:
        """Run it; `reloads` learns what the service takes over while it runs."""
        ...


def launch(service: str, run: Run, config: Path | None = None) -> int:
    """Run one service until SIGTERM or SIGINT; return the exit status. `Reloads`: its file again.

    Args:
        service: Name in logs.
        run: Composition root of the service.
        config: Deployment file; see `services.kit.config.loader.config_path`.

    Returns:
        0 after a drain; 1 for an error of the service; 2 for a mistake in the deployment file or a
        file that it names, or for a missing library that the environment requires. A crash raises.
    """
    os.umask(0o077)  # state, logs and keys are this user's alone
    status = 0
    try:
        serve(service, run, load(config_path(config)))
    except* (ConfigError, export.NotInstalled) as wrong:
        sys.stderr.writelines(f"{error}\n" for error in leaves(wrong))
        status = 2
    except* ServiceError as failed:
        logs.get("service").debug("the service failed", exc_info=failed)
        sys.stderr.writelines(f"{service}: {error}\n" for error in leaves(failed))
        status = 1
    return status


def serve(service: str, run: Run, deployment: Deployment) -> None:
    """Run one service of a deployment until SIGTERM or SIGINT.

    Raises:
        ConfigError: A file that the deployment names has a mistake.
        export.NotInstalled: A library that the environment requires is missing.
    """
    logs.configure(service, level=deployment.log_level)
    log = logs.get("service")
    log.info("starts", file=str(deployment.source or ""), digest=deployment.digest)
    log.debug("settings", settings=shown(deployment))
    collect_rarely()
    descriptors.raise_limit()
    with export.exported(service):
        uvloop.run(_until_stopped(run, deployment, systemd.adopt()))


def shown(deployment: Deployment) -> dict[str, Any]:
    """Return the settings as logs may have them: without what an external server is started with.

    Its command and environment may hold secrets; a database's password is masked by its type.
    """
    variants = {"__all__": {"runtime": {"command", "environment"}}}
    return deployment.model_dump(
        mode="json", exclude={"models": {"__all__": {"variants": variants}}}
    )


async def _until_stopped(run: Run, deployment: Deployment, watchdog_s: float) -> None:
    stop, reloads = asyncio.Event(), Reloads(deployment)
    async with asyncio.TaskGroup() as tasks:
        signals = tasks.create_task(serve_until(stop), name="signals")
        reloading = tasks.create_task(reloads.follow_signal(), name="reload")
        following = tasks.create_task(reloads.follow_link(), name="reload.link")
        living = tasks.create_task(systemd.live(stop, watchdog_s), name="systemd")
        watching = tasks.create_task(descriptors.watch(RealClock()), name="descriptors")
        await run(deployment, stop, reloads=reloads)
        stop.set()
        living.cancel()
        watching.cancel()
        reloading.cancel()
        following.cancel()
        await signals

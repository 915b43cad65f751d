"""Several router processes on one port. The kernel gives each connection to one of them.

They share nothing: each has its own id, follows the planner, reports its load (the planner adds
up), opens its own streams to workers (which divide their credits among streams), and sends its
part of the requests by the plan's shares, so that the sum keeps to them, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Final, Protocol

from services.kit.config import Deployment
from services.kit.net import split_address
from services.kit.process import service
from services.router.runtime.child_processes import Children, parent_gone, shared_port

_SPARE_S: Final = 5.0
"""Time to end a process, on top of the time that requests may take."""


class Serve(Protocol):
    """Runs one router; a function of a module, because it is pickled for other processes."""

    async def __call__(
        self,
        deployment: Deployment,
        stop: asyncio.Event,
        started: Callable[[int], None] | None = None,
    ) -> None:
        """Route until `stop`; see `services.router.app.run`."""
        ...


async def run_several(
    deployment: Deployment,
    stop: asyncio.Event,
    serve: Serve,
    started: Callable[[int], None] | None = None,
) -> None:
    """Keep `router.processes` routers running until `stop`, then let them drain.

    Args:
        deployment: The whole file.
        stop: Set it to end them.
        serve: Runs one of them.
        started: Called with the port once all have taken requests.

    Raises:
        OSError: Another program has the port.
        ChildFailed: One could not serve, or did not end as it should.
    """
    settings = deployment.router
    with shared_port(settings.listen) as address:
        children = Children(
            "router",
            settings.processes,
            partial(_child, deployment=deployment, address=address, serve=serve),
            grace_s=settings.default_timeout_s + _SPARE_S,
        )
        async with asyncio.TaskGroup() as tasks:
            reporting = tasks.create_task(
                _report_started(children, address, started), name="router.started"
            )
            await children.keep(stop)
            reporting.cancel()


async def _report_started(
    children: Children, address: str, started: Callable[[int], None] | None
) -> None:
    await children.all_served()
    if started is not None:
        started(split_address(address)[1])


def own_part(deployment: Deployment, address: str, index: int) -> Deployment:
    """Return the deployment of one of several routers: the common port, its own metrics port."""
    router = deployment.router
    metrics = router.metrics
    if metrics:
        host, port = metrics.rpartition(":")[0], split_address(metrics)[1]
        metrics = f"{host}:{port + index if port else 0}"
    own = router.model_copy(update={"listen": address, "metrics": metrics})
    return deployment.model_copy(update={"router": own})


def _child(
    index: int, serves: Connection, *, deployment: Deployment, address: str, serve: Serve
) -> None:
    service.serve("router", partial(_one, serve, serves), own_part(deployment, address, index))


async def _one(
    serve: Serve, serves: Connection, deployment: Deployment, stop: asyncio.Event
) -> None:
    """Route until `stop`, or until the parent that would set it has ended."""
    async with asyncio.TaskGroup() as tasks:
        orphaned = tasks.create_task(parent_gone(stop), name="router.parent")
        await serve(deployment, stop, serves.send)
        orphaned.cancel()

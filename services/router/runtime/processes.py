"""Several router processes on one port. The kernel gives each connection to one of them.

They share nothing: each has its own id, follows the planner, reports its load (the planner adds
up), opens its own streams to workers (which divide their credits among streams), and sends its
part of the requests by the plan's shares, so that the sum keeps to them, too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final

from services.kit.backoff import Backoff
from services.kit.config import Deployment
from services.kit.net import address_of, bound_socket, split_address
from services.kit.process import service, systemd
from services.kit.process.reload import Reloads
from services.kit.telemetry import logs

_SPARE_S: Final = 5.0
"""Time to end a process, on top of the time that requests may take."""


LIVE: Final = ("models.*", "router.picker_listen")
USED: Final = (
    *("router.*", "predictor*", "tls*", "access*"),
    *(f"{each}.{name}" for each in ("planner", "carbon") for name in ("listen", "address")),
    *(f"models.*.{name}" for name in ("max_queue", "max_queue_mib", "overtaking_s")),
    *(f"models.*.{name}" for name in ("default_deadline_s", "hedge_after_s")),
)


Serve = Callable[..., Awaitable[None]]
"""Runs one router, as `services.router.app.run`; a function of a module, because it is pickled."""


async def run_several(
    deployment: Deployment,
    stop: asyncio.Event,
    serve: Serve,
    started: Callable[[int], None] | None = None,
    *,
    reloads: Reloads | None = None,
) -> None:
    """Keep `router.processes` routers running until `stop`, then let them drain.

    Args:
        deployment: The whole file.
        stop: Set it to end them.
        serve: Runs one of them.
        started: Called with the port once all have taken requests.
        reloads: Has each of them read the file again, on request.

    Raises:
        OSError: Another program has the port.
        ChildFailed: One could not serve, or did not end as it should.
    """
    settings = deployment.router
    with ExitStack() as stack:
        address = stack.enter_context(shared_port(settings.listen))
        http = settings.http_listen and stack.enter_context(shared_port(settings.http_listen))

        def all_served() -> None:
            systemd.ready()
            if started is not None:
                started(split_address(address)[1])

        children = Children(
            settings.processes,
            partial(_child, deployment=deployment, addresses=(address, http), serve=serve),
            all_served,
            grace_s=settings.default_timeout_s + _SPARE_S,
        )
        if reloads is not None:
            reloads.serve(USED, LIVE, children.reload)
        await children.keep(stop)


def own_part(deployment: Deployment, addresses: tuple[str, str], index: int) -> Deployment:
    """Return the deployment of one of several routers: common ports, its own for metrics and file.

    Args:
        deployment: The whole file.
        addresses: Of gRPC and of HTTP; empty: none.
        index: Which of the routers.
    """
    address, http = addresses
    router = deployment.router
    metrics = router.metrics
    if metrics:
        host, port = split_address(metrics)
        metrics = address_of(host, port + index if port else 0)
    file = router.routing_file and router.routing_file.with_name(
        f"{router.routing_file.name}.{index}"
    )
    own = router.model_copy(
        update={"listen": address, "http_listen": http, "metrics": metrics, "routing_file": file}
    )
    return deployment.model_copy(update={"router": own})


def _child(
    index: int,
    serves: Connection,
    *,
    deployment: Deployment,
    addresses: tuple[str, str],
    serve: Serve,
) -> None:
    service.serve("router", partial(_one, serve, serves), own_part(deployment, addresses, index))


async def _one(
    serve: Serve,
    serves: Connection,
    deployment: Deployment,
    stop: asyncio.Event,
    *,
    reloads: Reloads,
) -> None:
    """Route until `stop`, or until the parent that would set it has ended."""
    async with asyncio.TaskGroup() as tasks:
        orphaned = tasks.create_task(parent_gone(stop), name="router.parent")
        await serve(deployment, stop, serves.send, reloads=reloads)
        orphaned.cancel()


if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

_log = logs.get("children")

_SPAWN: Final = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
_ENDED_WELL: Final = (0, -signal.SIGTERM)  # drained, or had not begun to serve
_STEADY_S: Final = 10.0
"""After a child lived for so long, the backoff starts again, s."""


class ChildFailed(RuntimeError):
    """A child ended before it served, or with an error at the end."""


async def parent_gone(stop: asyncio.Event) -> None:
    """Set `stop`, in a child, when the parent has ended for any reason."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        await _readable(parent.sentinel)
        stop.set()


@dataclass(eq=False)
class Children:
    """Keeps routers running; one that ends is started again, with backoff.

    Attributes:
        count: Number of children, >= 1.
        work: Work of each child, by its index: until SIGTERM or `parent_gone`; it sends any value
            over the connection once it serves. A function of a module, or a partial of one.
        all_served: Called when each has served once.
        grace_s: Time to drain after SIGTERM before they are killed, s.
    """

    count: int
    work: Callable[[int, Connection], None]
    all_served: Callable[[], None]
    grace_s: float
    _served: set[int] = field(default_factory=set)
    # Of those that serve: before, SIGHUP would end them.
    _pids: dict[int, int] = field(default_factory=dict)
    _failed: list[str] = field(default_factory=list)

    async def reload(self, _deployment: Deployment) -> None:
        """Make each serving child reload its file."""
        for pid in self._pids.values():
            os.kill(pid, signal.SIGHUP)

    async def keep(self, stop: asyncio.Event) -> None:
        """Keep the children running until `stop`, then terminate them and wait for their ends.

        Raises:
            ChildFailed: A child ended before it served; or, at the end, not by SIGTERM.
        """
        async with asyncio.TaskGroup() as tasks:
            for index in range(self.count):
                tasks.create_task(self._keep(index, stop), name=f"router.{index}")
        if self._failed:
            raise ChildFailed("; ".join(self._failed))

    async def _keep(self, index: int, stop: asyncio.Event) -> None:
        backoff = Backoff(maximum_s=5.0)
        while not stop.is_set():
            started_s = time.monotonic()
            status = await self._live(index, stop)
            what = f"process {index} of router ended with status {status}"
            if stop.is_set():
                if status not in _ENDED_WELL:
                    self._failed.append(what)
                return
            if index not in self._served:
                raise ChildFailed(f"{what} before it served")
            _log.warning("a process ended; it is started again", index=index, status=status)
            if time.monotonic() - started_s > _STEADY_S:
                backoff.reset()
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await stop.wait()

    async def _live(self, index: int, stop: asyncio.Event) -> int:
        """Run one child until it ends or `stop`; return its exit status."""
        reader, writer = _SPAWN.Pipe(duplex=False)
        child = _SPAWN.Process(target=self.work, args=(index, writer), name="router")
        child.start()  # blocks for some ms; no other work is on this loop
        writer.close()
        _log.info("a process started", index=index, pid=child.pid)
        gone = False
        try:
            async with asyncio.TaskGroup() as tasks:
                hearing = tasks.create_task(
                    self._hear(index, child.pid or 0, reader), name="serves"
                )
                ended = tasks.create_task(_readable(child.sentinel), name="ended")
                stopped = tasks.create_task(stop.wait(), name="stop")
                await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
                gone = ended.done()
                for task in (hearing, ended, stopped):
                    task.cancel()
        finally:
            self._pids.pop(index, None)
            if not gone:
                child.terminate()
            status = await _end(child, self.grace_s)
            reader.close()
        return status

    async def _hear(self, index: int, pid: int, reader: Connection) -> None:
        await _readable(reader.fileno())
        with suppress(EOFError):  # it ended before it served
            reader.recv()
            self._pids[index] = pid
            if index not in self._served:
                self._served.add(index)
                if len(self._served) == self.count:
                    self.all_served()


async def _end(child: SpawnProcess, grace_s: float) -> int:
    """Wait for a child's end; kill it where that takes too long."""
    try:
        async with asyncio.timeout(grace_s):
            await _readable(child.sentinel)
    except TimeoutError:
        child.kill()
    child.join()
    status = child.exitcode or 0
    child.close()
    return status


async def _readable(fd: int) -> None:
    """Wait until there are bytes to read, or the other end is closed."""
    loop = asyncio.get_running_loop()
    heard = asyncio.Event()
    loop.add_reader(fd, heard.set)
    try:
        await heard.wait()
    finally:
        loop.remove_reader(fd)


@contextmanager
def shared_port(address: str) -> Iterator[str]:
    """Reserve a port for processes that listen on it together, while the block runs.

    This process does not listen: the kernel gives connections only to those that do.

    Args:
        address: "host:port"; port 0 picks a free one.

    Yields:
        The address, with the port that was picked.

    Raises:
        OSError: Another program has the port.
    """
    # First without SO_REUSEPORT: another suite's routers must not share the port unnoticed.
    bound_socket(address).close()
    with bound_socket(address, shared=True) as reserved:
        yield f"{address.rpartition(':')[0]}:{reserved.getsockname()[1]}"

"""The router between workers that we start and stop, and a planner that we are."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import grpc

from benchmarks.router.messages import OPTIONS
from benchmarks.router.paths import cinquefoil
from benchmarks.router.peers import Planner, TimedWorker, add_control
from benchmarks.router.processes import Server
from cinquefoil.gpuagent.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server


@dataclass(frozen=True, slots=True)
class Running:
    """A worker that listens."""

    worker: TimedWorker
    endpoint: str
    server: grpc.aio.Server

    @property
    def route(self) -> tuple[str, str, int]:
        """Return what a routing table says of it."""
        return self.endpoint, self.worker.segment_id, self.worker.credits


@dataclass(slots=True)
class Site:
    """A router process and its peers, which run here.

    Attributes:
        planner: Publishes what workers there are.
        router: The process.
    """

    planner: Planner
    router: Server = field(init=False)
    _stack: AsyncExitStack
    _numbers: Iterator[int] = field(default_factory=count)

    async def worker(self, credits_: int, service_s: float) -> Running:
        """Start a worker; the router does not know it yet."""
        worker = TimedWorker(f"segment-{next(self._numbers)}", credits_, service_s)
        server = grpc.aio.server(options=OPTIONS)
        add_WorkerServiceServicer_to_server(worker, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._stack.push_async_callback(server.stop, None)
        return Running(worker, f"127.0.0.1:{port}", server)

    async def route(self, *running: Running) -> None:
        """Send requests to these, and wait until the router does."""
        await self.planner.publish(each.route for each in running)
        await self.planner.used()


@asynccontextmanager
async def site(
    folder: Path, slo_latency_s: float, credits_: int, service_s: float, **model: Any
) -> AsyncIterator[tuple[Site, Running]]:
    """Run a router and one worker.

    Args:
        folder: For the router's files.
        slo_latency_s: The model's objective.
        credits_: Requests the worker computes at a time.
        service_s: For so long each.
        model: Further settings of the model.
    """
    planner = Planner(slo_latency_s)  # type: ignore[abstract]  # a router calls nothing else
    async with AsyncExitStack() as stack:
        control = grpc.aio.server(options=OPTIONS)
        add_control(control, planner)
        port = control.add_insecure_port("127.0.0.1:0")
        await control.start()
        stack.push_async_callback(control.stop, None)
        here = Site(planner, stack)
        first = await here.worker(credits_, service_s)
        await planner.publish([first.route])
        here.router = await stack.enter_async_context(
            cinquefoil(folder, port, slo_latency_s=slo_latency_s, **model)
        )
        yield here, first

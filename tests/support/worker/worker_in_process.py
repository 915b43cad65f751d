"""A worker in the test's own process, so that a test sees into it."""

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from services.gpuagent.core.worker_slot import Grant
from services.gpuagent.shared_memory.shared_counters import SharedCounters, opened
from services.gpuagent.worker.batch_executor import BatchExecutor
from services.gpuagent.worker.core.batcher import Batcher
from services.gpuagent.worker.core.credits import Credits, Share
from services.gpuagent.worker.gpu_slot import WorkerDevice
from services.gpuagent.worker.intake import INTAKE_BYTES, Job
from services.gpuagent.worker.onnx_engine import Engine
from services.gpuagent.worker.onnx_model import LocalModel
from services.gpuagent.worker.servicer import WorkerServicer, add_worker
from services.kit.clock import RealClock
from services.kit.rpc import Limits, serving
from tests.support.worker.worker_process import worker_spec


class CountedCredits(Credits):
    """Credits that remember. Attributes: most (requests that were ever in flight together)."""

    most = 0

    def take(self, share: Share, waited_s: float, now_s: float) -> None:
        super().take(share, waited_s, now_s)
        self.most = max(self.most, sum(each.in_flight for each in self._shares))


@dataclass(frozen=True)
class Worker:
    """A worker that serves."""

    address: str
    counters: SharedCounters
    batcher: Batcher[Job[Any]]
    credits: CountedCredits

    @property
    def requests(self) -> int:
        """Requests that were run."""
        return self.counters.slot(0).requests

    @property
    def streams(self) -> int:
        """Routers that are connected."""
        return len(self.credits._shares)

    @property
    def busy(self) -> bool:
        return self.counters.slot(0).busy_since_s > 0


@asynccontextmanager
async def running(
    folder: Path, file: Path, *, intake_bytes: int = INTAKE_BYTES, **changes: Any
) -> AsyncIterator[Worker]:
    """Wire a worker as its `app` does."""
    spec, clock = worker_spec(folder, file, **changes), RealClock()
    with opened(spec.ledger) as counters, ThreadPoolExecutor(1) as thread:
        counters.set_grant(0, Grant(idle_power_w=10.0))
        device = WorkerDevice(spec, counters, clock)
        device.claim(os.getpid())
        batcher = Batcher[Job[Any]](spec.batch_size, 1000)
        engine = Engine(spec.file, spec.provider)
        engine.prove_batches(spec.batch_size)
        local = LocalModel(engine, thread)
        credits_ = CountedCredits(spec.batch_size)
        executor = BatchExecutor(batcher, device, local, credits_, clock, intake_bytes=intake_bytes)
        servicer = WorkerServicer(pb.Hello(segment_id=spec.segment_id, model=spec.model), executor)
        batches = asyncio.create_task(executor.run(), name="batches")
        try:
            async with serving(
                "127.0.0.1:0",
                lambda server: add_worker(servicer.Execute, server),
                (),
                grace_s=0,
                limits=Limits(message_bytes=spec.message_bytes),
                transport="own",
            ) as server:
                yield Worker(f"127.0.0.1:{server.port}", counters, batcher, credits_)
        finally:
            batches.cancel()
            await asyncio.wait((batches,))

"""An agent's node of simulated GPUs, on which no segment runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cinquefoil.gpuagent.v1.worker_pb2 import Hello
from services.gpuagent.core.worker_spec import WorkerEnvironment
from services.gpuagent.devices.clock_locks import ClockLocks
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.shared_memory.shared_counters import SharedCounters, opened
from services.gpuagent.state_store import Store
from services.gpuagent.supervision.journal import Journal
from services.gpuagent.supervision.managed_node import ManagedNode
from services.gpuagent.supervision.segments import Segments
from services.gpuagent.supervision.worker_allocation import WorkerAllocator
from services.gpuagent.supervision.worker_supervisor import SupervisionContext
from services.kit.clock import RealClock
from tests.support.gpuagent.nvml_faults import FaultyNvml


async def _nothing(endpoint: str, segment_id: str) -> Hello:
    del endpoint, segment_id
    return Hello()


@asynccontextmanager
async def idle_node(
    folder: Path, library: FaultyNvml, *, simulated: bool = True
) -> AsyncIterator[tuple[ManagedNode, SharedCounters]]:
    """Yield the node, whose clocks may not be locked, and the counters of its first GPU."""
    uuid, clock = library.gpu_uuids[0], RealClock()
    with opened(folder / "ledger") as counters:
        async with (
            DeviceThread(NvmlGpus(simulated=simulated)) as device,
            asyncio.TaskGroup() as tasks,
        ):
            segments = Segments(
                WorkerAllocator(folder, "127.0.0.1", WorkerEnvironment(), {uuid: counters}),
                Store(folder / "journal.json", Journal),
                SupervisionContext(clock, _nothing, lambda: None),
                tasks,
            )
            node = ManagedNode(
                name="node",
                zone="Z",
                simulated=simulated,
                device=device,
                segments=segments,
                clocks=ClockLocks(device, folder / "clocks.json", allowed=False),
                clock=clock,
                changed=lambda: None,
                tasks=tasks,
            )
            yield node, counters

"""The accounts' reader: one that meets trouble says so once, and keeps reading."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from structlog.testing import capture_logs

from cinquefoil.gpuagent.v1.worker_pb2 import Hello
from services.gpuagent.core.worker_spec import WorkerEnvironment
from services.gpuagent.devices.clock_locks import ClockLocks
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.energy.metering import GpuMeter, MeteredGpu
from services.gpuagent.energy.node_accounts import NodeAccounts
from services.gpuagent.shared_memory.shared_counters import opened
from services.gpuagent.state_store import Store
from services.gpuagent.supervision.journal import Journal
from services.gpuagent.supervision.managed_node import ManagedNode
from services.gpuagent.supervision.segments import Segments
from services.gpuagent.supervision.worker_allocation import WorkerAllocator
from services.gpuagent.supervision.worker_supervisor import SupervisionContext
from services.kit.clock import RealClock
from tests.support.gpuagent.nvml_faults import FaultyNvml, InjectedFault

POWER: Final = "nvmlDeviceGetPowerUsage"
COUNTER: Final = "nvmlDeviceGetTotalEnergyConsumption"


async def _nothing(endpoint: str, segment_id: str) -> Hello:
    del endpoint, segment_id
    return Hello()


@asynccontextmanager
async def _accounts(
    folder: Path, library: FaultyNvml, *, simulated: bool = True
) -> AsyncIterator[NodeAccounts]:
    """The accounts of the library's first GPU, on which no segment runs."""
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
            metered = MeteredGpu(50.0, 50.0, 108, simulated)
            meter = GpuMeter(folder / "energy.json", counters, metered)
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
            yield NodeAccounts(node, {uuid: meter}, lambda: None)


async def test_a_meter_that_cannot_be_read_is_logged_once_for_each_cause_and_again_when_it_is_back(
    tmp_path: Path, library: FaultyNvml
) -> None:
    async with _accounts(tmp_path, library) as accounts:
        await accounts.read()
        with capture_logs() as logs:
            for code in (Code.TIMEOUT, Code.UNKNOWN):
                library.inject(InjectedFault(code, frozenset({POWER, COUNTER}), times=6))
            for _ in range(9):
                await accounts.read()

    events = [entry["event"] for entry in logs]
    assert events == ["cannot read the meter"] * 2 + ["the meter is read again"]
    assert [entry["log_level"] for entry in logs] == ["warning", "warning", "info"]
    assert "Timeout" in logs[0]["why"]


async def test_a_gpu_that_reports_nothing_is_modelled_and_that_is_logged_once(
    tmp_path: Path, library: FaultyNvml
) -> None:
    library.inject(InjectedFault(Code.NOT_SUPPORTED, frozenset({POWER, COUNTER}), times=None))
    async with _accounts(tmp_path, library, simulated=False) as accounts:
        with capture_logs() as logs:
            await accounts.read()
            await asyncio.sleep(0.02)
            await accounts.read()
        (account,) = accounts.list().values()

    assert [entry["why"] for entry in logs] == ["it has none: energy is modelled"]
    assert account.method == "model"
    assert account.total_j > 0
    assert account.idle_j == account.total_j

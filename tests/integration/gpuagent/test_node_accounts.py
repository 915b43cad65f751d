"""The accounts' reader: one that meets trouble says so once, and keeps reading."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from structlog.testing import capture_logs

from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.gpuagent.energy.metering import GpuMeter, MeteredGpu
from services.gpuagent.energy.node_accounts import NodeAccounts
from tests.support.gpuagent.idle_node import idle_node
from tests.support.gpuagent.nvml_faults import FaultyNvml, InjectedFault

POWER: Final = "nvmlDeviceGetPowerUsage"
COUNTER: Final = "nvmlDeviceGetTotalEnergyConsumption"


@asynccontextmanager
async def _accounts(
    folder: Path, library: FaultyNvml, *, simulated: bool = True
) -> AsyncIterator[NodeAccounts]:
    """The accounts of the library's first GPU, on which no segment runs."""
    async with idle_node(folder, library, simulated=simulated) as (node, counters):
        meter = GpuMeter(folder / "energy.json", counters, MeteredGpu(50.0, 50.0, 108, simulated))
        yield NodeAccounts(node, {library.gpu_uuids[0]: meter}, lambda: None)


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

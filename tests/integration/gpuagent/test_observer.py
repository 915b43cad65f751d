"""Observed energy by workload on simulated NVML, against what each workload drew."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

import pynvml
import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.core.device_port import Permissions
from services.gpuagent.core.process_activity import ProcessActivity
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.devices.fake_nvml.core.sensors import NoActivity
from services.gpuagent.devices.fake_nvml.library import FakeNvml, install
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.observation.core.ledger import GpuLedger
from services.gpuagent.observation.observer import ACTIVITY_S, METER_S, Observer
from services.gpuagent.observation.process_readings import ProcessReader
from services.gpuagent.observation.workloads import Workload

READ_ONLY = Permissions(granted=False, setting="a test only reads")


@dataclass
class Tenant:
    """A process that computes for a share of the time at a power.

    Attributes:
        watts: Active power while it computes alone, W.
        duty: Share of the time: the first part of each cycle.
        slice_uuid: Where; "": the whole GPU.
        cycle_s: Length of its cycles, s; None: 20 to 80 ms at random.
        into_s: Time since its present cycle began, s.
    """

    pid: int
    watts: float
    duty: float
    slice_uuid: str = ""
    cycle_s: float | None = None
    into_s: float = 0.0
    busy_s: float = 0.0
    joules: float = 0.0

    def __post_init__(self) -> None:
        self._random = Random(self.pid)
        self._length_s = self._new_length_s()

    def _new_length_s(self) -> float:
        return self.cycle_s or self._random.uniform(0.02, 0.08)

    @property
    def running(self) -> bool:
        return self.into_s < self.duty * self._length_s

    def advance(self, length_s: float) -> None:
        while length_s > 0:
            step_s = min(length_s, self._length_s - self.into_s)
            computed_s = min(max(self.duty * self._length_s - self.into_s, 0.0), step_s)
            self.busy_s += computed_s
            self.joules += computed_s * self.watts
            self.into_s, length_s = self.into_s + step_s, length_s - step_s
            if self._length_s - self.into_s < 1e-9:
                self.into_s, self._length_s = 0.0, self._new_length_s()


@dataclass
class Tenants(NoActivity):
    """Processes on one GPU in a time of the test's own."""

    tenants: list[Tenant] = field(default_factory=list)
    now_s: float = 1_000_000.0
    held_s: float = 0.0

    def advance(self, length_s: float) -> None:
        self.now_s += length_s
        self.held_s += length_s if self.tenants else 0.0
        for each in self.tenants:
            each.advance(length_s)

    def energy_j(self) -> float:
        return sum(each.joules for each in self.tenants)

    def context_s(self) -> float:
        return self.held_s

    def in_use(self) -> bool:
        return bool(self.tenants)

    def busy(self, slice_uuid: str) -> bool:
        return any(each.slice_uuid == slice_uuid for each in self.tenants)

    def processes(self) -> list[ProcessActivity]:
        return [
            ProcessActivity(each.pid, each.slice_uuid, each.busy_s, 2**30, each.running)
            for each in self.tenants
        ]


class Pods:
    """Each process is a pod."""

    by_key: dict[str, Workload] = {}  # noqa: RUF012 - nothing is put into it

    @staticmethod
    def of(pid: int) -> Workload:
        return Workload(f"pod:{pid}", f"pod {pid}")


async def observed(
    monkeypatch: pytest.MonkeyPatch, gpu: str, tenants: list[Tenant], *slices: str
) -> GpuLedger:
    """Observe ten minutes; tenants on slices are placed in their order."""
    work = Tenants()
    monkeypatch.setattr("services.gpuagent.devices.fake_nvml.library.time.time", lambda: work.now_s)
    library = FakeNvml("node", [gpu], activity=lambda _: work, clock=lambda: work.now_s)
    restore = install(library)
    try:
        uuid = library.gpu_uuids[0]
        with NvmlGpus(simulated=True) as port:
            if slices:
                port.set_mig_mode(uuid, enabled=True)
            for at, (kind, each) in enumerate(zip(slices, tenants, strict=bool(slices))):
                each.slice_uuid = port.create_slice(uuid, Placement(kind, 4 * at))
            async with DeviceThread(NvmlGpus(permissions=READ_ONLY, simulated=True)) as device:
                observer = Observer(device, lambda: 300.0, monotonic=lambda: work.now_s)
                observer._workloads = Pods()  # type: ignore[assignment]
                await observer.start()
                work.tenants = tenants
                for number in range(int(600 / METER_S)):
                    if number == 150:  # a quiet minute: idle power is learnt
                        duties = [each.duty for each in tenants]
                        for each in tenants:
                            each.duty = 0.0
                    if number == 180:
                        for each, duty in zip(tenants, duties, strict=True):
                            each.duty = duty
                    for _ in range(round(METER_S / ACTIVITY_S)):
                        work.advance(ACTIVITY_S)
                        await observer.read_activity()
                    await observer.read_gpus()
                return observer.gpus[uuid].ledger
    finally:
        restore()


@pytest.mark.parametrize("duties", [(1.0, 0.0), (0.5, 0.5), (0.3, 0.1), (0.6, 0.05)])
async def test_two_pods_that_share_a_gpu_in_time(
    monkeypatch: pytest.MonkeyPatch, duties: tuple[float, float]
) -> None:
    """Shares are within 5 points of what each drew; equal power, as SM time cannot show it."""
    tenants = [Tenant(41, 400.0, duties[0]), Tenant(42, 400.0, duties[1])]
    ledger = await observed(monkeypatch, "h100-80gb", tenants)
    for each in tenants:
        found = ledger.workloads[f"pod:{each.pid}"].active_j
        assert found == pytest.approx(each.joules, abs=0.05 * sum(t.joules for t in tenants))
    assert ledger.workloads["pod:41"].method == "process_utilization"


async def test_cycles_of_200_ms_are_seen_always_at_the_same_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit that docs/observe.md names: equal pods out of phase, and one has all the energy."""
    tenants = [Tenant(41, 400.0, 0.3, cycle_s=0.2, into_s=at_s) for at_s in (0.02, 0.12)]
    tenants[1].pid = 42
    ledger = await observed(monkeypatch, "h100-80gb", tenants)
    first, second = (ledger.workloads[f"pod:{pid}"].active_j for pid in (41, 42))
    assert first > 10 * second
    assert first + second == pytest.approx(sum(each.joules for each in tenants), rel=0.05)


async def test_two_pods_on_instances_of_a_gpu_with_monitors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In MIG mode the monitors of Hopper give each instance's share, within 5 %."""
    tenants = [Tenant(41, 200.0, 0.6), Tenant(42, 200.0, 0.2)]
    ledger = await observed(monkeypatch, "h100-80gb", tenants, "3g.40gb", "3g.40gb")
    for each in tenants:
        found = ledger.workloads[f"pod:{each.pid}"].active_j
        assert found == pytest.approx(each.joules, rel=0.05)
    assert ledger.workloads["pod:41"].method == "instance_utilization"


async def test_without_monitors_instances_are_shared_by_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An A100 does not say what its instances compute: the method says so."""
    tenants = [Tenant(41, 100.0, 0.9), Tenant(42, 100.0, 0.1)]
    ledger = await observed(monkeypatch, "a100-40gb", tenants, "3g.20gb", "3g.20gb")
    first, second = (ledger.workloads[f"pod:{pid}"] for pid in (41, 42))
    assert first.active_j == pytest.approx(second.active_j)
    assert first.method == "slices_held"


async def test_processes_that_come_and_go_leave_no_energy_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tenants = [Tenant(41, 300.0, 0.5)]
    ledger = await observed(monkeypatch, "t4", tenants)
    parts = (ledger.idle_j, ledger.unattributed_j, ledger.workloads["pod:41"].active_j)
    assert sum(parts) == pytest.approx(ledger.total_j)


def test_a_reading_has_all_samples_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten samples in two seconds count by process; without them a reading sees the newest only."""
    work = Tenants([Tenant(41, 400.0, 0.5), Tenant(42, 400.0, 0.5)])
    monkeypatch.setattr("services.gpuagent.devices.fake_nvml.library.time.time", lambda: work.now_s)
    library = FakeNvml("node", ["t4"], activity=lambda _: work, clock=lambda: work.now_s)
    restore = install(library)
    readings = []
    try:
        pynvml.nvmlInit()
        reader = ProcessReader(library.gpu_uuids[0])
        for samples in (10, 10, 1):
            for _ in range(samples):
                work.advance(METER_S / samples)
                reader.sample()
            readings.append(reader.read())
    finally:
        restore()
    _, often, once = readings
    assert set(often.active) == {41, 42}
    assert sum(often.active.values()) > 6 * 100  # of ten samples, in % of the GPU's time
    assert len(once.active) == 1


async def test_activity_is_read_between_readings_of_the_meter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`run` takes sample after sample while the next reading is an hour away."""
    enough, samples = asyncio.Event(), list[str]()

    def sample(reader: ProcessReader) -> None:
        samples.append(reader.uuid)
        if len(samples) == 3:
            loop.call_soon_threadsafe(enough.set)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(ProcessReader, "sample", sample)
    monkeypatch.setattr("services.gpuagent.observation.observer.METER_S", 3600.0)
    restore = install(FakeNvml("node", ["t4"], activity=lambda _: Tenants()))
    try:
        async with DeviceThread(NvmlGpus(permissions=READ_ONLY, simulated=True)) as device:
            observer = Observer(device, lambda: None, discover=False)
            await observer.start()
            running = asyncio.create_task(observer.run())
            await enough.wait()
            running.cancel()
            await asyncio.wait([running])
    finally:
        restore()


def test_the_driver_has_one_sample_per_200_ms_and_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an H200's polled every 50 ms: 100 of 134 calls are empty, the samples' processes vary."""
    work = Tenants([Tenant(41, 400.0, 0.3), Tenant(42, 400.0, 0.3)])
    monkeypatch.setattr("services.gpuagent.devices.fake_nvml.library.time.time", lambda: work.now_s)
    restore = install(
        FakeNvml("node", ["h200-141gb"], activity=lambda _: work, clock=lambda: work.now_s)
    )
    found, empty, seen_us = [], 0, 0
    try:
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(135):
            try:
                (sample,) = pynvml.nvmlDeviceGetProcessUtilization(device, seen_us)
            except pynvml.NVMLError_NotFound:
                empty += 1
            else:
                seen_us = sample.timeStamp
                found.append(sample)
            work.advance(0.05)
    finally:
        restore()
    assert len(found) == pytest.approx(34, abs=1)
    assert len(found) + empty == 135
    assert {sample.pid for sample in found} == {41, 42}
    assert sum(sample.smUtil for sample in found) / len(found) == pytest.approx(60, abs=10)


def test_the_driver_refuses_utilisation_in_mig_mode() -> None:
    """As NVIDIA's does: NOT_SUPPORTED, and NOT_FOUND where nothing was sampled."""
    work = Tenants()
    restore = install(FakeNvml("node", ["a100-40gb"], activity=lambda _: work))
    try:
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetProcessUtilization(device, 0)
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(device) == []
        pynvml.nvmlDeviceSetMigMode(device, 1)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetProcessUtilization(device, 0)
        assert not pynvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice
    finally:
        restore()

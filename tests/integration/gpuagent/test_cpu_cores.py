"""The cores of a machine as a device: the same promises as NVML's, kept without a driver."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from services.gpuagent.core import cpu_geometry
from services.gpuagent.core.device_port import ALL_GRANTED, IN_USE, MeterReading, Permissions
from services.gpuagent.core.worker_config import Network, WorkerConfigBuilder
from services.gpuagent.devices.cpu import speed
from services.gpuagent.devices.cpu.cores import CpuCores, chosen, cores_of
from services.gpuagent.devices.cpu.power import PowerModel, busy_s
from services.gpuagent.devices.device_thread import Devices
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.kit.cgroup import CgroupLimits
from services.kit.config import Cpu
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
)
from services.kit.hardware.gpu_types import GpuModel
from services.kit.profiles.core.analytic import AnalyticProfile

CORES = (2, 3, 5, 7)
UUID = "CPU-test"
ONE, TWO = Placement("1c", 0), Placement("2c", 1)


@dataclass
class Meter:
    """A meter with a value that the test sets, J."""

    total_j: float = 0.0

    def energy_j(self) -> float:
        """Return it."""
        return self.total_j


@dataclass
class Machine:
    """Four cores, and what is known of them. Attributes: held (slices with a process)."""

    path: Path
    held: set[str] = field(default_factory=set)
    measured: int = 0
    meter: Meter = field(default_factory=Meter)

    def device(self, permissions: Permissions = ALL_GRANTED) -> CpuCores:
        """The device as an agent makes it at its start."""
        return CpuCores(
            uuid=UUID,
            cores=CORES,
            model=GpuModel(
                name="cpu-4",
                product_name="Test",
                geometry=cpu_geometry.geometry(4, 2**30),
                sm_count=4,
                memory_bytes=2**30,
                idle_power_w=4.0,
                context_power_w=4.0,
                max_power_w=20.0,
                clocks_mhz=(0,),
            ),
            path=self.path,
            gauge=lambda: MeterReading(self.meter.energy_j(), None, "rapl", 7.0),
            busy=self.held.__contains__,
            permissions=permissions,
            measure=self._measure,
        )

    def _measure(self) -> float:
        self.measured += 1
        return 47.11 + self.measured


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "cpu.json")


def slices(device: Devices) -> list[Placement]:
    (found,) = device.list()
    return [placement for placement, _ in found.slices]


def test_slices_and_speed_outlive_the_agent(machine: Machine) -> None:
    """Speed is measured once: the type of a device must not change with every start."""
    with machine.device() as device:
        uuid = device.create_slice(UUID, TWO)
        assert device.create_slice(UUID, TWO) == uuid, "creating twice is creating once"
        (before,) = device.list()
    with machine.device() as device:
        device.reopen()
        (after,) = device.list()
    assert after == before
    assert (after.slices, after.cores) == (((TWO, uuid),), CORES)
    assert after.mig_enabled
    assert (after.model.core_gmacs_per_s, machine.measured) == (48.0, 1)


def test_no_core_is_in_two_slices(machine: Machine) -> None:
    with machine.device() as device:
        device.create_slice(UUID, TWO)
        with pytest.raises(FailedPrecondition, match="1c@2 overlaps 2c@1"):
            device.create_slice(UUID, Placement("1c", 2))
        assert slices(device) == [TWO]


def test_a_slice_with_a_process_is_not_destroyed(machine: Machine) -> None:
    """With the reason for which a step tries again: processes take a moment to end."""
    with machine.device() as device:
        machine.held.add(device.create_slice(UUID, ONE))
        with pytest.raises(FailedPrecondition, match="a process still uses it") as refused:
            device.destroy_slice(UUID, ONE)
        assert (refused.value.reason, slices(device)) == (IN_USE, [ONE])
        machine.held.clear()
        device.destroy_slice(UUID, ONE)
        device.destroy_slice(UUID, ONE)
        assert slices(device) == []


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 3)), max_size=20))
def test_whatever_comes_and_goes_slices_are_disjoint_and_as_requested(
    tmp_path_factory: pytest.TempPathFactory, orders: list[tuple[bool, int, int]]
) -> None:
    """The device against a set of slices: a slice comes exactly where all of its cores are free."""
    known: dict[Placement, set[int]] = {}
    with Machine(tmp_path_factory.mktemp("cpu") / "cpu.json").device() as device:
        for create, size, start in orders:
            place, cores = Placement(f"{size}c", start), set(range(start, start + size))
            if start + size > 4:
                with pytest.raises(InvalidArgument):
                    device.create_slice(UUID, place)
            elif not create:
                device.destroy_slice(UUID, place)
                known.pop(place, None)
            elif place in known or not any(cores & other for other in known.values()):
                device.create_slice(UUID, place)
                known[place] = cores
            else:
                with pytest.raises(FailedPrecondition):
                    device.create_slice(UUID, place)
            assert slices(device) == sorted(known, key=lambda each: each.start)


CHANGES: dict[str, Callable[[Devices, str], object]] = {
    "create": lambda device, uuid: device.create_slice(uuid, ONE),
    "destroy": lambda device, uuid: device.destroy_slice(uuid, ONE),
}
CALLS = CHANGES | {
    "mode": lambda device, uuid: device.set_mig_mode(uuid, enabled=True),
    "meter": lambda device, uuid: device.meter(uuid),
    "lock": lambda device, uuid: device.lock_clock(uuid, 1000),
    "reset": lambda device, uuid: device.reset_clock(uuid),
}


@pytest.mark.parametrize("call", CHANGES)
def test_an_agent_that_only_reads_changes_nothing(machine: Machine, call: str) -> None:
    with machine.device(Permissions(granted=False)) as device:
        with pytest.raises(PermissionDenied, match="only reads its node"):
            CHANGES[call](device, UUID)
        assert slices(device) == []


@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_here_is_not_found(machine: Machine, call: str) -> None:
    with machine.device() as device, pytest.raises(NotFound, match="GPU-1 is not here"):
        CALLS[call](device, "GPU-1")


def test_there_is_no_clock_and_no_mode_to_change(machine: Machine) -> None:
    with machine.device() as device:
        device.set_mig_mode(UUID, enabled=True)
        device.reset_clock(UUID)
        with pytest.raises(FailedPrecondition, match="no MIG mode"):
            device.set_mig_mode(UUID, enabled=False)
        with pytest.raises(FailedPrecondition, match="clock is the kernel's"):
            device.lock_clock(UUID, 1000)


def test_the_meter_says_how_it_knows(machine: Machine) -> None:
    machine.meter.total_j = 12.5
    with machine.device() as device:
        reading = device.meter(UUID)
    assert reading == MeterReading(12.5, None, "rapl", busy_core_s=7.0)


def test_a_worker_gets_the_cores_of_its_slice(machine: Machine, tmp_path: Path) -> None:
    """Two cores at the second: numbers 3 and 5. Two processes there have a thread each."""
    networks = {("m", "v"): (Network(tmp_path / "v.onnx", AnalyticProfile(0.1, memory_mib=1)),)}
    with machine.device() as device:
        device.create_slice(UUID, TWO)
        (found,) = device.list()
    for processes, threads in ((1, 2), (2, 1)):
        spec = SegmentSpec("s", "m", "v", 1, processes, UUID, TWO)
        config = WorkerConfigBuilder(networks).build(spec, found)
        assert (config.worker.cores, config.worker.threads) == ((3, 5), threads)
        assert (config.worker.provider, config.worker.charged) == ("CPUExecutionProvider", False)
        assert "CUDA_VISIBLE_DEVICES" not in config.environment
        assert config.sm_count == 2


# ---- energy and speed --------------------------------------------------------------------------


def test_modelled_power_is_idle_power_and_so_much_per_busy_core() -> None:
    now_s, busy = [100.0], [40.0]
    model = PowerModel((0, 1), 2.0, 5.0, lambda: now_s[0], lambda _: busy[0])
    before_j = model.energy_j()
    now_s[0], busy[0] = 110.0, 46.0
    assert model.energy_j() - before_j == pytest.approx(2.0 * 10 + 5.0 * 6)
    busy[0] = 0.0
    assert model.energy_j() - before_j == pytest.approx(50.0), "it never falls"


def test_the_kernel_counts_work_on_a_core() -> None:
    cores = sorted(os.sched_getaffinity(0))
    before_s = busy_s(cores)
    speed.gmacs_per_s(0.2)
    assert busy_s(cores) - before_s >= 0.1


def test_the_speed_of_a_core_is_a_number_that_hardware_can_have() -> None:
    assert 0.05 < speed.gmacs_per_s(0.1) < 2000


# ---- from settings -----------------------------------------------------------------------------


def device_of(folder: Path, settings: Cpu, rapl: Path) -> CpuCores:
    return cores_of(
        "n", settings, folder, lambda uuid: SharedCounters(folder / uuid), ALL_GRANTED, rapl=rapl
    )


def test_energy_is_rapls_where_it_may_be_read_and_else_a_model(tmp_path: Path) -> None:
    zone = tmp_path / "rapl" / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name, text in {
        "name": "package-0",
        "energy_uj": "5000000",
        "max_energy_range_uj": "9000000",
    }.items():
        (zone / name).write_text(text)
    with_rapl = device_of(tmp_path, Cpu(cores=1), tmp_path / "rapl")
    (zone / "energy_uj").write_text("7000000")
    reading = with_rapl.gauge()
    assert (reading.method, reading.energy_j) == ("rapl", 2.0)
    without = device_of(tmp_path, Cpu(cores=1, idle_w=3.0, core_w=7.0), tmp_path / "none")
    assert without.gauge().method == "model"
    assert (without.model.context_power_w, without.model.max_power_w) == (3.0, 10.0)


def test_a_quota_slows_the_cores_and_a_limit_is_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 1.5 cores of time, two cores are as fast as 1.5; a container's memory is its limit."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    speeds = {}
    for quota in (math.inf, 1.5, 0.5):
        device = cores_of(
            "node-a",
            Cpu(cores=2),
            tmp_path,
            lambda _: SharedCounters(tmp_path / "ledger"),
            ALL_GRANTED,
            rapl=tmp_path / "none",
            allowed=CgroupLimits(quota, 2**28),
        )
        device.measure = lambda: 40.0
        with device:
            (found,) = device.list()
        speeds[quota] = found.model.core_gmacs_per_s
        assert found.model.memory_bytes == 2**28
        assert found.model.geometry.kind("1c").memory_bytes == 2**27

    assert speeds == {math.inf: 40.0, 1.5: 30.0, 0.5: 10.0}


def test_a_device_keeps_its_identity_while_its_cores_do(tmp_path: Path) -> None:
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    named, counted = Cpu(cores=allowed), Cpu(cores=len(allowed))
    one, same = (device_of(tmp_path, each, tmp_path) for each in (named, counted))
    assert one.uuid == same.uuid
    assert one.cores == same.cores == allowed
    assert one.model.name == f"cpu-{len(allowed)}"
    if len(allowed) > 1:
        assert device_of(tmp_path, Cpu(cores=allowed[1:]), tmp_path).uuid != one.uuid


@pytest.mark.parametrize("cores", [10_000, (9_999,)], ids=["too many", "not there"])
def test_cores_that_the_agent_may_not_use_are_refused(cores: int | tuple[int, ...]) -> None:
    with pytest.raises(FailedPrecondition, match=r"cpu\.cores: .*may"):
        chosen(Cpu(cores=cores))


@pytest.mark.parametrize("cores", [0, (), (1, 1), (-1,)])
def test_cores_that_make_no_sense_are_no_settings(cores: int | tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cores"):
        Cpu(cores=cores)

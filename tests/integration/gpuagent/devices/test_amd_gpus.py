"""AMD's GPUs through AMD's own package over a simulated library: read, metered, clocked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.core.device_port import Permissions
from services.gpuagent.devices.amd_gpus import UNCUT, AmdGpus
from services.gpuagent.devices.fake_amdsmi.library import FakeAmdSmi, install
from services.gpuagent.devices.fake_nvml.core.sensors import ActivityMeter
from services.gpuagent.devices.hardware import maker_of
from services.kit.config import Node
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServiceError,
)
from services.kit.hardware import gpu_types
from services.kit.hardware.boards import DriverReading, identify, table_of
from services.kit.mig import WHOLE

pytestmark = pytest.mark.skipif(find_spec("amdsmi") is None, reason="amdsmi is not installed")

MI300X = gpu_types.load("mi300x-192gb")


class Busy(ActivityMeter):
    """A GPU that computes at 300 W, after 1 kJ of work."""

    ratio = 1.0

    def energy_j(self) -> float:
        return 1000.0

    def power_w(self) -> float:
        return 300.0

    def in_use(self) -> bool:
        return True

    def set_clock_ratio(self, ratio: float) -> None:
        self.ratio = ratio


@contextmanager
def opened(library: FakeAmdSmi, **of: object) -> Iterator[AmdGpus]:
    undo = install(library)
    try:
        with AmdGpus(**of) as gpus:  # type: ignore[arg-type]
            yield gpus
    finally:
        undo()


def test_a_gpu_is_read_back_as_its_table_and_serves_as_a_whole() -> None:
    """Every figure comes through AMD's functions."""
    library = FakeAmdSmi("n", ["mi300x-192gb"] * 2)
    with opened(library) as port:
        first, second = port.list()
        readings = port.readings()

    assert (first.uuid, second.uuid) == library.gpu_uuids
    assert (first.index, second.index) == (0, 1)
    assert first.slices == ((Placement(WHOLE, 0), first.uuid),)
    model = first.model
    assert (model.name, model.product_name, model.maker) == (
        MI300X.name,
        MI300X.product_name,
        "amd",
    )
    assert model.geometry == MI300X.uncut
    assert (model.sm_count, model.memory_bytes) == (304, MI300X.memory_bytes)
    assert (model.idle_power_w, model.context_power_w, model.max_power_w) == (140.0, 170.0, 750.0)
    assert (model.clocks_mhz[0], model.clocks_mhz[-1]) == (2100, 132)
    assert model.performance == MI300X.performance
    assert not first.mig_enabled
    assert readings[0].slices[0].memory_bytes == model.memory_bytes


def test_energy_is_the_counters_and_power_the_instants() -> None:
    """An MI300 reports no average power; the counter counts in 15.3 uJ."""
    now = [0.0]
    library = FakeAmdSmi("n", ["mi300x-192gb"], activity=lambda _: Busy(), clock=lambda: now[0])
    (uuid,) = library.gpu_uuids
    with opened(library) as port:
        before = port.meter(uuid)
        now[0] = 10.0
        after = port.meter(uuid)

    assert before.energy_j == pytest.approx(1000.0, abs=0.01)
    assert after.energy_j - before.energy_j == pytest.approx(1400.0, abs=0.01)
    assert (after.power_w, after.method) == (470.0, "counter")


def test_a_clock_is_limited_until_the_driver_chooses_again_and_outlives_the_agent(
    tmp_path: Path,
) -> None:
    """The highest clock stays that of the GPU; what runs there is slowed."""
    busy = Busy()

    def library() -> FakeAmdSmi:
        return FakeAmdSmi("n", ["mi300x-192gb"], state_dir=tmp_path, activity=lambda _: busy)

    (uuid,) = library().gpu_uuids
    with opened(library()) as port:
        port.lock_clock(uuid, 1050)
    with opened(library()) as port:
        limited = port.get(uuid)
        ratio = busy.ratio
        with pytest.raises(InvalidArgument, match=r"clock_mhz must be 132\.\.2100, got 2200"):
            port.lock_clock(uuid, 2200)
        port.reset_clock(uuid)
        free = port.get(uuid)

    assert (limited.clock_mhz, limited.model.max_clock_mhz, ratio) == (1050, 2100, 0.5)
    assert (free.clock_mhz, busy.ratio) == (2100, 1.0)


def test_partitions_and_mig_mode_are_refused_and_the_whole_always_exists() -> None:
    """A segment of a plan creates and destroys the whole without effect."""
    library = FakeAmdSmi("n", ["mi300x-192gb"])
    (uuid,) = library.gpu_uuids
    with opened(library) as port:
        assert port.create_slice(uuid, UNCUT) == uuid
        port.destroy_slice(uuid, UNCUT)
        port.set_mig_mode(uuid, enabled=False)
        assert len(port.get(uuid).slices) == 1
        with pytest.raises(InvalidArgument, match="serve as a whole"):
            port.create_slice(uuid, Placement("1g.24gb", 0))
        with pytest.raises(FailedPrecondition, match="no MIG mode"):
            port.set_mig_mode(uuid, enabled=True)


def test_rights_are_the_settings_and_the_drivers() -> None:
    """A GPU that is not allowed, an agent that only reads, and a process that is not root."""
    library = FakeAmdSmi("n", ["mi300x-192gb"] * 2, root=False)
    one, other = library.gpu_uuids
    with opened(library, allowed=[one]) as port:
        assert [gpu.uuid for gpu in port.list()] == [one]
        with pytest.raises(PermissionDenied, match="may not touch"):
            port.meter(other)
        with pytest.raises(PermissionDenied, match="AMDSMI_STATUS_NO_PERM; it needs root"):
            port.lock_clock(one, 1500)
    with opened(library, permissions=Permissions(granted=False)) as port:
        port.meter(one)
        with pytest.raises(PermissionDenied, match="only reads"):
            port.reset_clock(one)
        with pytest.raises(NotFound):
            port.get("GPU-0")


def test_a_node_has_gpus_of_one_maker() -> None:
    """That of its simulated types, else nvidia; two are two nodes."""

    def node(*types: str, **of: str) -> Node:
        return Node(zone="Z", simulated=types or None, **of)

    assert maker_of(node("mi300x-192gb")) == maker_of(node(maker="amd")) == "amd"
    assert maker_of(node("h100-80gb")) == maker_of(node()) == "nvidia"
    for wrong in (node("h100-80gb", "mi300x-192gb"), node("h100-80gb", maker="amd")):
        with pytest.raises(FailedPrecondition, match="one maker"):
            maker_of(wrong)


@pytest.mark.parametrize("maker", ["intel", "google", "tpu"])
def test_other_makers_are_refused_by_name(maker: str) -> None:
    with pytest.raises(ValueError, match="must be nvidia or amd: GPUs of Intel, and TPUs"):
        Node(zone="Z", maker=maker)


def test_another_amd_board_is_estimated_from_one_and_none_of_nvidia_ever_is() -> None:
    """Of an unknown capability too."""
    mi250 = DriverReading(
        product_name="AMD Instinct MI250X",
        memory_bytes=64 * 2**30,
        compute_capability=(9, 10),
        sm_count=110,
        maker="amd",
    )
    strange = DriverReading(
        product_name="NVIDIA What", memory_bytes=2**30, compute_capability=(0, 0)
    )

    assert identify(mi250).performance.like == "mi300x-192gb"
    assert identify(mi250).estimated
    assert gpu_types.load(identify(strange).performance.like).maker == "nvidia"
    assert table_of("AMD Instinct MI300X OAM") is MI300X


def test_errors_of_the_driver_are_service_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU that does not answer is left out; `refused` has the reason."""
    library = FakeAmdSmi("n", ["mi300x-192gb"])
    with opened(library) as port:
        monkeypatch.setattr(library, "amdsmi_get_clock_info", lambda *_: 30)  # BUSY
        assert port.list() == ()
        (uuid,) = library.gpu_uuids
        with pytest.raises(ServiceError, match="AMDSMI_STATUS_BUSY"):
            port.get(uuid)
        assert "AMDSMI_STATUS_BUSY" in port.refused()[uuid]["amdsmi"]

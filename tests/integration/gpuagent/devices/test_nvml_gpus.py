"""The agent's device port over simulated NVML: what it promises the rest of the agent."""

from __future__ import annotations

import random
from ctypes import byref
from typing import TYPE_CHECKING

import psutil
import pynvml
import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
)
from services.kit.hardware import gpu_types
from services.kit.mig import WHOLE, Geometry
from tests.support.examples import trials
from tests.support.gpuagent.nvml_faults import FaultyNvml, InjectedFault
from tests.support.layouts import layouts

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Open, Start, Work

THREE, FOUR, ONE = Placement("3g.20gb", 4), Placement("4g.20gb", 0), Placement("1g.5gb", 6)
MIG_TYPES = [name for name in gpu_types.names("nvidia") if gpu_types.load(name).mig_capable]
UNCUT_TYPES = [name for name in gpu_types.names("nvidia") if name not in MIG_TYPES]


def info(port: NvmlGpus, uuid: str) -> GpuInfo:
    return next(gpu for gpu in port.list() if gpu.uuid == uuid)


def placements(port: NvmlGpus, uuid: str) -> list[Placement]:
    return [placement for placement, _ in info(port, uuid).slices]


def offered(name: str) -> Geometry:
    whole = gpu_types.load(name).geometry
    plain = tuple(kind for kind in whole.kinds if "+" not in kind.name)
    return Geometry(whole.memory_slices, plain)


# ---- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MIG_TYPES)
def test_a_cut_gpu_is_read_back_as_its_table_without_special_profiles(
    start: Start, gpus: Open, name: str
) -> None:
    """Every value of the port comes through NVML, and is what the simulator was given."""
    (uuid,) = start(name).gpu_uuids
    port, table = gpus(), gpu_types.load(name)
    port.set_mig_mode(uuid, enabled=True)
    model = info(port, uuid).model

    assert set(model.geometry.kinds) == set(offered(name).kinds)
    assert model.geometry.memory_slices == table.geometry.memory_slices
    assert (model.name, model.product_name) == (table.name, table.product_name)
    assert (model.sm_count, model.memory_bytes) == (table.sm_count, table.memory_bytes)
    assert (model.context_power_w, model.max_power_w) == (table.context_power_w, table.max_power_w)
    assert model.clocks_mhz == table.clocks_mhz
    assert info(port, uuid).slices == ()


def test_a_board_with_a_lower_limit_is_idle_at_less(
    start: Start, gpus: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PCIe boards go by the table of SXM boards, whose idle power would hide their work."""
    (uuid,) = start("h100-80gb").gpu_uuids
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerManagementDefaultLimit", lambda _: 350_000)
    model = info(gpus(), uuid).model

    table = gpu_types.load("h100-80gb")
    assert (model.context_power_w, model.max_power_w) == (table.context_power_w / 2, 350)


def test_a_board_of_which_the_driver_says_little_is_estimated(
    start: Start, gpus: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GB10, as in a DGX Spark: unified memory, no power limit, no list of clocks."""

    def unsupported(*_: object) -> None:
        raise pynvml.NVMLError_NotSupported

    (uuid,) = start("t4").gpu_uuids
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: "NVIDIA GB10")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCudaComputeCapability", lambda _: (12, 1))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetNumGpuCores", lambda _: 6144)
    for name in ("MemoryInfo", "PowerManagementDefaultLimit", "SupportedMemoryClocks"):
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", unsupported)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMaxClockInfo", lambda *_: 2418)
    model = info(gpus(), uuid).model

    assert (model.name, model.sm_count, model.clocks_mhz) == ("nvidia-gb10", 48, (2418,))
    assert model.performance is not None
    assert model.performance.like in ("l4-24gb", "l40s-48gb")  # by this machine's memory
    assert model.memory_bytes == psutil.virtual_memory().total
    assert 0 < model.idle_power_w < model.context_power_w < model.max_power_w


@pytest.mark.parametrize("name", gpu_types.names("nvidia"))
def test_an_uncut_gpu_is_one_whole_slice_with_the_gpus_uuid(
    start: Start, gpus: Open, name: str
) -> None:
    (uuid,) = start(name).gpu_uuids
    found = info(gpus(), uuid)

    assert found.slices == ((Placement(WHOLE, 0), uuid),)
    assert found.model.geometry == gpu_types.whole_geometry(
        compute_slices=max(kind.compute_slices for kind in gpu_types.load(name).geometry.kinds),
        sm_count=gpu_types.load(name).sm_count,
        memory_bytes=gpu_types.load(name).memory_bytes,
    )
    assert not found.mig_enabled


def test_gpus_are_listed_by_index_with_their_clock(library: FaultyNvml, gpus: Open) -> None:
    port = gpus()
    port.lock_clock(library.gpu_uuids[1], 600)

    found = [(gpu.uuid, gpu.index, gpu.model.name, gpu.clock_mhz) for gpu in port.list()]
    first, second, third = library.gpu_uuids
    assert found == [
        (first, 0, "a100-40gb", 1410),
        (second, 1, "t4", 600),
        (third, 2, "p4", 1531),
    ]


# ---- slices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MIG_TYPES)
def test_layouts_are_created_read_back_and_destroyed(start: Start, gpus: Open, name: str) -> None:
    """A sample with a fixed seed; the simulated NVML's own test takes every layout."""
    (uuid,) = start(name).gpu_uuids
    port = gpus()
    port.set_mig_mode(uuid, enabled=True)
    every = list(layouts(offered(name)))

    for layout in random.Random(7).sample(every, min(trials(1), len(every))):
        made = {placement: port.create_slice(uuid, placement) for placement in layout}
        assert info(port, uuid).slices == tuple(made.items())
        for placement in layout:
            port.destroy_slice(uuid, placement)
        assert placements(port, uuid) == []


def test_creating_and_destroying_again_changes_nothing(cut: tuple[NvmlGpus, str]) -> None:
    port, uuid = cut
    first = port.create_slice(uuid, THREE)
    assert port.create_slice(uuid, THREE) == first
    assert placements(port, uuid) == [THREE]

    port.destroy_slice(uuid, THREE)
    port.destroy_slice(uuid, THREE)
    assert placements(port, uuid) == []
    assert port.create_slice(uuid, THREE) != first


def test_a_slice_changes_while_its_neighbour_is_in_use(
    cut: tuple[NvmlGpus, str], work: Work
) -> None:
    """The change ParvaGPU and CLOVER pay a restart for."""
    port, uuid = cut
    busy = port.create_slice(uuid, THREE)
    work.held = {busy}
    port.create_slice(uuid, FOUR)
    port.destroy_slice(uuid, FOUR)
    port.create_slice(uuid, Placement("2g.10gb", 0))

    assert placements(port, uuid) == [Placement("2g.10gb", 0), THREE]
    assert dict(info(port, uuid).slices)[THREE] == busy


def test_a_slice_in_use_is_not_destroyed(cut: tuple[NvmlGpus, str], work: Work) -> None:
    port, uuid = cut
    work.held = {port.create_slice(uuid, THREE)}

    with pytest.raises(FailedPrecondition, match="In use by another client") as refused:
        port.destroy_slice(uuid, THREE)

    assert refused.value.reason == "NVML_IN_USE"
    assert placements(port, uuid) == [THREE]


def test_an_overlapping_slice_is_refused_and_nothing_changes(cut: tuple[NvmlGpus, str]) -> None:
    port, uuid = cut
    port.create_slice(uuid, ONE)

    with pytest.raises(FailedPrecondition, match="another slice"):
        port.create_slice(uuid, THREE)

    assert placements(port, uuid) == [ONE]


@pytest.mark.parametrize(
    "wrong", [Placement("3g.20gb", 1), Placement("3g.40gb", 0), Placement(WHOLE, 0)], ids=str
)
def test_a_placement_the_gpu_cannot_have_is_an_invalid_argument(
    cut: tuple[NvmlGpus, str], wrong: Placement
) -> None:
    port, uuid = cut
    for change in (port.create_slice, port.destroy_slice):
        with pytest.raises(InvalidArgument) as refused:
            change(uuid, wrong)
        assert refused.value.field == "placement"


def test_a_failed_compute_instance_takes_its_gpu_instance_with_it(
    cut: tuple[NvmlGpus, str], library: FaultyNvml
) -> None:
    port, uuid = cut
    library.inject(InjectedFault.nth("nvmlGpuInstanceCreateComputeInstance", Code.UNKNOWN))
    with pytest.raises(Unavailable):
        port.create_slice(uuid, THREE)

    assert placements(port, uuid) == []
    port.create_slice(uuid, Placement("7g.40gb", 0))  # every place is free


def _half_created(uuid: str, *compute_ids: int) -> None:
    """Create a 3g instance at 4 with the given compute instances, as someone else would."""
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    where = pynvml.c_nvmlGpuInstancePlacement_t(4, 4)
    instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, 9, byref(where))
    for profile_id in compute_ids:
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile_id)


def test_a_slice_half_created_before_a_crash_is_completed(cut: tuple[NvmlGpus, str]) -> None:
    port, uuid = cut
    _half_created(uuid)
    assert placements(port, uuid) == []

    port.create_slice(uuid, THREE)

    assert placements(port, uuid) == [THREE]


def test_a_slice_half_created_before_a_crash_can_be_destroyed(cut: tuple[NvmlGpus, str]) -> None:
    port, uuid = cut
    _half_created(uuid)
    port.destroy_slice(uuid, THREE)

    whole = Placement("7g.40gb", 0)
    port.create_slice(uuid, whole)
    assert placements(port, uuid) == [whole], "nothing of the half slice is in its way"


def test_a_slice_that_others_divided_is_not_taken_for_ours(cut: tuple[NvmlGpus, str]) -> None:
    port, uuid = cut
    _half_created(uuid, 0, 1)
    assert placements(port, uuid) == []

    with pytest.raises(FailedPrecondition) as refused:
        port.create_slice(uuid, THREE)
    assert refused.value.reason == "SLICE_DIVIDED"
    port.destroy_slice(uuid, THREE)
    port.create_slice(uuid, THREE)


@pytest.mark.parametrize("name", UNCUT_TYPES)
def test_the_whole_slice_is_always_there(start: Start, gpus: Open, name: str) -> None:
    (uuid,) = start(name).gpu_uuids
    port = gpus()
    port.destroy_slice(uuid, Placement(WHOLE, 0))

    assert port.create_slice(uuid, Placement(WHOLE, 0)) == uuid
    assert placements(port, uuid) == [Placement(WHOLE, 0)]
    with pytest.raises(FailedPrecondition, match="not in MIG mode"):
        port.create_slice(uuid, ONE)

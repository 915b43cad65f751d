"""GPU instances that the simulated GPUs can have, read through unmodified pynvml."""

from __future__ import annotations

from ctypes import byref, c_uint
from itertools import product
from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement, SliceProfile
from services.gpuagent.devices.fake_nvml.library import FakeNvml, install
from services.kit.hardware import gpu_types
from services.kit.hardware.gpu_types import GpuTable
from tests.support.gpuagent.nvml_calls import A100, create, gpu, mig_gpu, read_layout
from tests.support.layouts import layouts

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Start

MIG_TABLES = [t for t in map(gpu_types.load, gpu_types.names("nvidia")) if t.mig_capable]

every_mig_table = pytest.mark.parametrize("table", MIG_TABLES, ids=lambda table: table.name)


@every_mig_table
def test_every_legal_layout_round_trips(start: Start, table: GpuTable) -> None:
    """Every layout of every geometry is created, read back as requested, and destroyed.

    Each follows from one that it shares its first instances with: those are left standing. Of a
    type that can be cut like one before it every eighth is taken: only its names differ.
    """
    start(table.name)
    alike = next(other for other in MIG_TABLES if _cuts(other) == _cuts(table))
    chosen = list(layouts(table.geometry))[:: 1 if alike is table else 8]
    handle = mig_gpu()
    kinds = {kind.name: kind for kind in table.geometry.kinds}

    standing: list[tuple[Placement, Any]] = []
    for layout in [*chosen, ()]:
        while tuple(placement for placement, _ in standing) != layout[: len(standing)]:
            pynvml.nvmlGpuInstanceDestroy(standing.pop()[1])
        for placement in layout[len(standing) :]:
            instance = create(handle, kinds[placement.profile], placement.start)
            standing.append((placement, instance))
        assert read_layout(handle, table) == layout


def _cuts(table: GpuTable) -> list[tuple[object, ...]]:
    kinds = table.geometry.kinds
    return [(k.compute_slices, k.memory_slices, k.starts, k.max_count) for k in kinds]


@every_mig_table
def test_every_pair_that_overlaps_is_refused_and_no_other(start: Start, table: GpuTable) -> None:
    start(table.name)
    handle = mig_gpu()
    places = [(kind, start) for kind in table.geometry.kinds for start in kind.starts]

    for (one, first), (other, second) in product(places, places):
        made = create(handle, one, first)
        pair = (Placement(one.name, first), Placement(other.name, second))
        if table.geometry.problem(pair):
            with pytest.raises(pynvml.NVMLError_InsufficientResources):
                create(handle, other, second)
        else:
            pynvml.nvmlGpuInstanceDestroy(create(handle, other, second))
        assert read_layout(handle, table) == (pair[0],)
        pynvml.nvmlGpuInstanceDestroy(made)


@every_mig_table
def test_profiles_are_queried_by_enum_and_answer_with_the_hardware_id(
    start: Start, table: GpuTable
) -> None:
    start(table.name)
    found = {}
    for profile in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(), profile)
        except pynvml.NVMLError_NotSupported:
            continue
        found[info.name.removeprefix("MIG ")] = (
            info.id,
            info.sliceCount,
            info.instanceCount,
            info.multiprocessorCount,
            info.memorySizeMB * 2**20,
        )

    assert found == {
        kind.name: (
            kind.gpu_instance_profile_id,
            kind.compute_slices,
            kind.max_count,
            kind.sm_count,
            kind.memory_bytes,
        )
        for kind in table.geometry.kinds
    }


def test_possible_placements_are_reported_even_while_mig_is_disabled(start: Start) -> None:
    start()
    count = c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(), 9, None, byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(), 9, array, byref(count))

    assert [(entry.start, entry.size) for entry in array] == [(0, 4), (4, 4)]


@given(steps=st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=20))
def test_whatever_is_requested_the_layout_stays_legal(steps: list[tuple[int, bool]]) -> None:
    """Creating where there is room and destroying, in any order, with the capacity always true."""
    restore = install(FakeNvml("node", ["a100-40gb"]))
    pynvml.nvmlInit()
    handle, made = mig_gpu(), []
    for number, make in steps:
        kind = A100.geometry.kinds[number]
        profile_id = kind.gpu_instance_profile_id
        room = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, profile_id)
        if make:
            created = next(
                filter(None, (_created(handle, kind, start) for start in kind.starts)), None
            )
            assert (created is not None) == (room > 0)
            made += [] if created is None else [created]
        elif made:
            pynvml.nvmlGpuInstanceDestroy(made.pop(number % len(made)))
        assert A100.geometry.problem(read_layout(handle, A100)) == ""
        assert len(read_layout(handle, A100)) == len(made)
    restore()


def _created(handle: Any, kind: SliceProfile, start: int) -> Any:
    """Return a new GPU instance, or None where another is in its place."""
    where = pynvml.c_nvmlGpuInstancePlacement_t(start, kind.memory_slices)
    try:
        return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            handle, kind.gpu_instance_profile_id, byref(where)
        )
    except pynvml.NVMLError_InsufficientResources:
        return None

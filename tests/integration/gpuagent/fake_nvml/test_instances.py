"""Life of MIG instances on simulated GPUs, through unmodified pynvml."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from typing import TYPE_CHECKING

import pynvml
import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.hardware import gpu_types
from tests.support.gpuagent.nvml_calls import (
    A100,
    create_a100,
    gpu,
    mig_gpu,
    mig_uuids,
    read_layout,
)

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Start, Work

UNCUT = [name for name in gpu_types.names("nvidia") if not gpu_types.load(name).mig_capable]


def test_an_illegal_start_size_or_profile_is_an_invalid_argument(start: Start) -> None:
    start()
    handle = mig_gpu()
    for profile_id, where in [(9, (1, 4)), (9, (0, 2)), (3, (0, 4)), (2, (0, 1))]:
        placement = pynvml.c_nvmlGpuInstancePlacement_t(*where)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile_id, byref(placement))


def test_more_than_max_count_is_refused(start: Start) -> None:
    """Only one +me slice, though starts are free."""
    start()
    handle = mig_gpu()
    create_a100(handle, "1g.5gb+me", 0)

    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        create_a100(handle, "1g.5gb+me", 1)


def test_a_gpu_instance_with_a_compute_instance_is_in_use(start: Start) -> None:
    start()
    handle = mig_gpu()
    instance = create_a100(handle, "3g.20gb", 4)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)

    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)

    assert read_layout(handle, A100) == ()


def test_a_compute_instance_with_a_process_is_in_use(start: Start, work: Work) -> None:
    start(activity=lambda _: work)
    handle = mig_gpu()
    instance = create_a100(handle, "3g.20gb", 4)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    work.held = set(mig_uuids(handle))

    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlComputeInstanceDestroy(compute)
    work.held = set()
    pynvml.nvmlComputeInstanceDestroy(compute)

    assert mig_uuids(handle) == []


def test_a_gpu_instance_is_divided_among_compute_instances(start: Start) -> None:
    start()
    handle = mig_gpu()
    instance = create_a100(handle, "3g.20gb", 0)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 3)

    sizes = []
    for index in range(2):
        device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        sizes.append(pynvml.nvmlDeviceGetAttributes(device).computeInstanceSliceCount)
    assert sizes == [2, 1]


def test_compute_profiles_of_an_instance_are_those_that_fit(start: Start) -> None:
    start()
    instance = create_a100(mig_gpu(), "3g.20gb", 0)
    found = []
    for profile in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, 0)
        except pynvml.NVMLError_NotSupported:
            continue
        found.append((info.name, info.id, info.instanceCount, info.multiprocessorCount))

    assert found == [
        ("MIG 1c.3g.20gb", 0, 3, 14),
        ("MIG 2c.3g.20gb", 1, 1, 28),
        ("MIG 3g.20gb", 2, 1, 42),
    ]


def test_handles_of_what_was_destroyed_stay_invalid_when_ids_are_used_again(start: Start) -> None:
    start()
    handle = mig_gpu()
    old = create_a100(handle, "3g.20gb", 4)
    number = pynvml.nvmlGpuInstanceGetInfo(old).id
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(old, 2)
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(old)
    new = create_a100(handle, "3g.20gb", 4)
    pynvml.nvmlGpuInstanceCreateComputeInstance(new, 2)

    assert pynvml.nvmlGpuInstanceGetInfo(new).id == number
    for call, stale in [
        (pynvml.nvmlGpuInstanceDestroy, old),
        (pynvml.nvmlGpuInstanceGetInfo, old),
        (pynvml.nvmlComputeInstanceDestroy, compute),
        (pynvml.nvmlDeviceGetUUID, device),
        (pynvml.nvmlGpuInstanceGetInfo, handle),
    ]:
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(stale)


def test_a_mig_device_has_a_new_uuid_each_time(start: Start) -> None:
    start()
    handle, seen = mig_gpu(), set()
    for _ in range(5):
        instance = create_a100(handle, "1g.5gb", 0)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        seen.update(mig_uuids(handle))
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)

    assert len(seen) == 5
    assert all(uuid.startswith("MIG-") for uuid in seen)


def test_a_mig_device_answers_for_itself_and_knows_its_gpu(start: Start) -> None:
    start()
    handle = mig_gpu()
    instance = create_a100(handle, "3g.20gb", 4)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    uuid = pynvml.nvmlDeviceGetUUID(device)

    assert pynvml.nvmlDeviceGetName(device) == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total == 20096 * 2**20
    number = pynvml.nvmlDeviceGetGpuInstanceId(device)
    assert number == pynvml.nvmlGpuInstanceGetInfo(instance).id
    again = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    assert pynvml.nvmlDeviceGetUUID(again) == uuid
    with pytest.raises(pynvml.NVMLError_NotSupported):  # power is the whole GPU's
        pynvml.nvmlDeviceGetPowerUsage(device)


def test_instances_need_mig_mode(start: Start) -> None:
    start()
    calls: tuple[Callable[[], object], ...] = (
        lambda: create_a100(gpu(), "3g.20gb", 0),
        lambda: read_layout(gpu(), A100),
        lambda: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(), 9),
        lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(), 0),
    )
    for call in calls:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call()
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu()) == 0


def test_the_mode_of_a_busy_gpu_stays_pending_and_the_status_says_so(
    start: Start, work: Work
) -> None:
    """The trap of the real call: the status is a value, nothing is raised."""
    library = start(activity=lambda _: work)
    work.held = set(library.gpu_uuids)

    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_ERROR_IN_USE
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 1]
    work.held = set()
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]


def test_mig_mode_cannot_end_while_instances_exist(start: Start) -> None:
    start()
    handle = mig_gpu()
    instance = create_a100(handle, "7g.40gb", 0)

    assert pynvml.nvmlDeviceSetMigMode(handle, 0) == pynvml.NVML_ERROR_IN_USE
    assert read_layout(handle, A100) == (Placement("7g.40gb", 0),)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert pynvml.nvmlDeviceSetMigMode(handle, 0) == pynvml.NVML_SUCCESS


@pytest.mark.parametrize("name", UNCUT)
def test_gpus_without_mig_support_none_of_it(start: Start, name: str) -> None:
    start(name)
    calls: tuple[Callable[[], object], ...] = (
        lambda: pynvml.nvmlDeviceGetMigMode(gpu()),
        lambda: pynvml.nvmlDeviceSetMigMode(gpu(), 1),
        lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(), 0),
    )
    for call in calls:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call()

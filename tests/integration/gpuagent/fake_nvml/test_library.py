"""The simulated library as such: devices, life, rights, and state that outlives processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pynvml
import pytest

from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.gpuagent.devices.fake_nvml.fake_node import UNPRIVILEGED
from services.gpuagent.devices.fake_nvml.library import FakeNvml, gpu_uuid, install
from services.kit.errors import NotFound
from tests.support.gpuagent.nvml_calls import (
    A100,
    create_a100,
    gpu,
    mig_gpu,
    read_layout,
)
from tests.support.gpuagent.nvml_faults import InjectedFault

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Start, Time


def test_energy_does_not_go_back_with_the_wall_clock(start: Start, clock: Time) -> None:
    start(clock=clock)
    clock.now_s += 100
    before_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())
    clock.now_s -= 50

    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) == before_mj


def test_uuids_are_stable_by_place_and_type_and_differ_otherwise() -> None:
    first = FakeNvml("node", ["t4", "t4", "p4"]).gpu_uuids
    other = FakeNvml("other", ["t4", "t4", "t4"]).gpu_uuids

    assert first == FakeNvml("node", ["t4", "t4", "p4"]).gpu_uuids
    assert len({*first, *other, gpu_uuid("node", 2, "t4")}) == 7


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(NotFound, match="h9000"):
        FakeNvml("node", ["h9000"])


def test_devices_are_found_by_index_and_uuid(start: Start) -> None:
    library = start("a100-40gb", "t4")

    assert pynvml.nvmlDeviceGetCount() == 2
    for index, uuid in enumerate(library.gpu_uuids):
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        assert pynvml.nvmlDeviceGetIndex(handle) == index
        assert pynvml.nvmlDeviceGetUUID(gpu(index)) == uuid
    assert pynvml.nvmlDeviceGetName(gpu(1)) == "Tesla T4"
    assert pynvml.nvmlSystemGetDriverVersion() == "580.95.05"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 13_000
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        gpu(2)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID(b"GPU-none")


def test_calls_outside_init_and_shutdown_are_refused(start: Start) -> None:
    start()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()

    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_a_function_we_lack_is_reported_as_such(start: Start) -> None:
    start()

    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetFanSpeed(gpu())


def test_restoring_gives_pynvml_back_what_it_had() -> None:
    first = FakeNvml("one", ["t4"])
    second = FakeNvml("two", ["t4", "t4"])
    restore_first = install(first)
    pynvml.nvmlInit()
    restore_second = install(second)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2

    restore_second()
    assert pynvml.nvmlDeviceGetCount() == 1
    restore_first()
    assert pynvml.nvmlLib is not first


def test_errors_have_nvmls_words(start: Start) -> None:
    start()

    assert pynvml.nvmlErrorString(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES) == (
        "Insufficient Resources"
    )
    assert str(pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)) == "In use by another client"


def test_changes_need_privilege_and_reading_does_not(start: Start) -> None:
    start(rights=UNPRIVILEGED)
    calls: tuple[Callable[[], object], ...] = (
        lambda: pynvml.nvmlDeviceSetMigMode(gpu(), 1),
        lambda: create_a100(gpu(), "3g.20gb", 0),
        lambda: pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 705, 705),
    )
    for call in calls:
        with pytest.raises(pynvml.NVMLError_NoPermission):
            call()
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 0]
    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == 29_000


def test_an_injected_fault_fails_a_call_once(start: Start) -> None:
    library = start()
    library.inject(InjectedFault.nth("nvmlDeviceGetPowerUsage", Code.UNKNOWN))

    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlDeviceGetPowerUsage(gpu())
    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == 29_000


def test_threads_share_the_library(start: Start) -> None:
    """Seven threads race for seven places, eight times as often: each place is won once."""
    start()
    handle, won = mig_gpu(), []
    barrier = threading.Barrier(8)

    def race() -> None:
        barrier.wait()
        for place in range(7):
            try:
                create_a100(handle, "1g.5gb", place)
            except pynvml.NVMLError_InsufficientResources:
                continue
            won.append(place)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(won) == list(range(7))
    assert len(read_layout(handle, A100)) == 7

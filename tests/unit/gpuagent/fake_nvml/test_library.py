"""The simulated library as such: devices, life, rights, and state that outlives processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from services.gpuagent.devices.fake_nvml import UNPRIVILEGED, Code, FakeNvml, gpu_uuid, install
from services.kit.errors import FailedPrecondition, NotFound
from services.kit.mig import Placement
from tests.support.gpuagent.nvml_calls import (
    A100,
    create_a100,
    gpu,
    mig_gpu,
    mig_uuids,
    read_layout,
)

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Start, Time, Work


def test_mode_instances_and_clocks_survive_the_process(
    start: Start, work: Work, tmp_path: Path
) -> None:
    start(state_dir=tmp_path)
    handle = mig_gpu()
    pynvml.nvmlGpuInstanceCreateComputeInstance(create_a100(handle, "3g.20gb", 4), 2)
    create_a100(handle, "1g.5gb", 0)
    pynvml.nvmlDeviceSetGpuLockedClocks(handle, 705, 705)
    uuids = mig_uuids(handle)

    start(state_dir=tmp_path, activity=lambda _: work)

    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]
    assert read_layout(gpu(), A100) == (Placement("1g.5gb", 0), Placement("3g.20gb", 4))
    assert mig_uuids(gpu()) == uuids
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_SM) == 705
    assert work.ratios == [0.5]


def test_energy_goes_on_after_a_restart_even_where_the_meter_starts_anew(
    start: Start, work: Work, clock: Time, tmp_path: Path
) -> None:
    start(state_dir=tmp_path, clock=clock, activity=lambda _: work)
    clock.now_s += 100
    work.joules = 5000.0
    mig_gpu()  # a change of state takes the meter's reading with it
    before_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())

    fresh = replace(work, joules=7.0)
    clock.now_s += 10
    start(state_dir=tmp_path, clock=clock, activity=lambda _: fresh)
    after_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())
    fresh.joules = 6000.0
    clock.now_s += 1
    later_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())

    assert before_mj == (55 * 100 + 5000) * 1000
    assert after_mj == (55 * 110 + 5000 + 7) * 1000
    assert later_mj == (55 * 111 + 5000 + 6000) * 1000


def test_a_reader_without_a_meter_shows_the_energy_saved_last(
    start: Start, work: Work, clock: Time, tmp_path: Path
) -> None:
    reader = start(state_dir=tmp_path, clock=clock)
    start(state_dir=tmp_path, clock=clock, activity=lambda _: work)
    work.joules = 5000.0
    mig_gpu()

    install(reader)

    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) == 5_000_000


def test_energy_does_not_go_back_with_the_wall_clock(start: Start, clock: Time) -> None:
    start(clock=clock)
    clock.now_s += 100
    before_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())
    clock.now_s -= 50

    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) == before_mj


def test_another_process_sees_each_change_as_it_happens(start: Start, tmp_path: Path) -> None:
    """A reader's library, made before the change, shows it; so do its handles."""
    reader = start(state_dir=tmp_path)
    start(state_dir=tmp_path)
    create_a100(mig_gpu(), "4g.20gb", 0)

    install(reader)

    assert read_layout(gpu(), A100) == (Placement("4g.20gb", 0),)


def test_a_file_that_is_no_state_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / f"{gpu_uuid('node', 0, 't4')}.json"
    for text in ("{", "[]", json.dumps({"version": 99}), json.dumps({"version": 1})):
        path.write_text(text)
        with pytest.raises(FailedPrecondition, match=path.name):
            FakeNvml("node", ["t4"], state_dir=tmp_path)


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
    assert pynvml.nvmlSystemGetNVMLVersion().endswith(pynvml.nvmlSystemGetDriverVersion())
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
        lambda: pynvml.nvmlDeviceCreateGpuInstance(gpu(), 9),
        lambda: pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 705, 705),
        lambda: pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 250_000),
    )
    for call in calls:
        with pytest.raises(pynvml.NVMLError_NoPermission):
            call()
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 0]
    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == 55_000


def test_a_call_told_to_fail_fails_once(start: Start) -> None:
    library = start()
    library.fail_next("nvmlDeviceGetPowerUsage", Code.UNKNOWN)

    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlDeviceGetPowerUsage(gpu())
    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == 55_000


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

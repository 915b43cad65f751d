"""Injected faults, and GPUs that fall off the bus, read through unmodified pynvml."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.gpuagent.devices.fake_nvml.library import install
from services.kit.errors import FailedPrecondition, InvalidArgument, NotFound
from tests.support.gpuagent.nvml_calls import (
    A100,
    create_a100,
    gpu,
    mig_gpu,
    mig_uuids,
    read_layout,
)
from tests.support.gpuagent.nvml_faults import FaultInjector, FaultyNvml, InjectedFault

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Start, Work

POWER = "nvmlDeviceGetPowerUsage"


# ---- orders ------------------------------------------------------------------------------------


def outcomes(calls: int, index: int = 0) -> list[bool]:
    found = []
    for _ in range(calls):
        try:
            pynvml.nvmlDeviceGetPowerUsage(gpu(index))
        except pynvml.NVMLError_Timeout:
            found.append(False)
        else:
            found.append(True)
    return found


@given(number=st.integers(1, 8))
def test_the_nth_call_fails_and_no_other(number: int) -> None:
    library = FaultyNvml("node", ["t4"])
    restore = install(library)
    pynvml.nvmlInit()
    library.inject(InjectedFault.nth(POWER, Code.TIMEOUT, number))

    assert outcomes(10) == [call != number for call in range(1, 11)]
    restore()


def test_an_order_for_one_gpu_leaves_the_others_alone(start: Start) -> None:
    library = start("t4", "t4")
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    library.inject(InjectedFault(Code.TIMEOUT, gpu_uuid=library.gpu_uuids[1], times=None))

    assert outcomes(3, index=0) == [True] * 3
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlDeviceGetName(handle)
    library.clear_faults()
    assert pynvml.nvmlDeviceGetName(handle) == "Tesla T4"


def test_an_order_reaches_the_slices_of_its_gpu(start: Start) -> None:
    library = start("a100-40gb")
    instance = create_a100(mig_gpu(), "3g.20gb", 4)
    library.inject(InjectedFault(Code.UNKNOWN, gpu_uuid=library.gpu_uuids[0]))

    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlGpuInstanceDestroy(instance)


def test_a_call_may_do_its_work_and_still_report_a_failure(start: Start) -> None:
    """The case in which only reading back shows the state."""
    library = start("a100-40gb")
    handle = mig_gpu()
    symbol = frozenset({"nvmlDeviceCreateGpuInstanceWithPlacement"})
    library.inject(InjectedFault(Code.TIMEOUT, symbol, after=True))

    with pytest.raises(pynvml.NVMLError_Timeout):
        create_a100(handle, "3g.20gb", 4)
    assert read_layout(handle, A100) == (Placement("3g.20gb", 4),)


@given(seed=st.integers(0, 2**32 - 1), rate=st.floats(0, 1))
def test_a_rate_gives_the_same_faults_for_the_same_seed(seed: int, rate: float) -> None:
    def drawn() -> list[bool]:
        injector = FaultInjector()
        injector.inject(InjectedFault(Code.UNKNOWN, rate=rate, times=None), seed)
        return [injector.due(POWER, "") is not None for _ in range(50)]

    assert drawn() == drawn()
    if rate in (0.0, 1.0):
        assert set(drawn()) == {bool(rate)}


def test_a_rate_is_about_the_share_of_calls_that_fail() -> None:
    injector = FaultInjector()
    injector.inject(InjectedFault(Code.UNKNOWN, rate=0.2, times=None), 7)
    failed = sum(injector.due(POWER, "") is not None for _ in range(10_000))

    assert 1_800 < failed < 2_200


def test_an_order_that_makes_no_sense_is_refused() -> None:
    orders: tuple[Callable[[], InjectedFault], ...] = (
        lambda: InjectedFault.nth(POWER, Code.UNKNOWN, 0),
        lambda: InjectedFault(Code.UNKNOWN, times=0),
        lambda: InjectedFault(Code.UNKNOWN, rate=1.5),
    )
    for order in orders:
        with pytest.raises(InvalidArgument):
            order()


# ---- off the bus -------------------------------------------------------------------------------


def test_every_call_about_a_lost_gpu_says_so_and_the_others_go_on(start: Start) -> None:
    library = start("a100-40gb", "t4")
    handle, other = mig_gpu(), gpu(1)
    instance = create_a100(handle, "3g.20gb", 4)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    mig_device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    library.lose(library.gpu_uuids[0])

    calls: tuple[Callable[[], object], ...] = (
        lambda: gpu(0),
        lambda: pynvml.nvmlDeviceGetHandleByUUID(library.gpu_uuids[0].encode()),
        lambda: pynvml.nvmlDeviceGetUUID(handle),
        lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        lambda: pynvml.nvmlDeviceSetMigMode(handle, 0),
        lambda: pynvml.nvmlDeviceSetGpuLockedClocks(handle, 705, 705),
        lambda: create_a100(handle, "1g.5gb", 0),
        lambda: pynvml.nvmlGpuInstanceGetInfo(instance),
        lambda: pynvml.nvmlComputeInstanceDestroy(compute),
        lambda: pynvml.nvmlDeviceGetUUID(mig_device),
    )
    for call in calls:
        with pytest.raises(pynvml.NVMLError_GpuIsLost, match="GPU is lost"):
            call()
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.nvmlDeviceGetPowerUsage(other) > 0


def test_a_lost_gpu_spoils_the_look_up_of_others_by_uuid(start: Start) -> None:
    """nvml.h: GPU_IS_LOST "if any GPU has fallen off the bus"; by index only the GPU itself."""
    library = start("t4", "t4")
    library.lose(library.gpu_uuids[0])

    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByUUID(library.gpu_uuids[1].encode())
    assert pynvml.nvmlDeviceGetUUID(gpu(1)) == library.gpu_uuids[1]


def test_after_a_reset_a_lost_gpu_is_back_and_as_new(start: Start) -> None:
    library = start("a100-40gb")
    handle = mig_gpu()
    instance = create_a100(handle, "3g.20gb", 4)
    pynvml.nvmlDeviceSetGpuLockedClocks(handle, 705, 705)
    library.lose(library.gpu_uuids[0])

    library.reset(library.gpu_uuids[0])

    assert pynvml.nvmlDeviceGetMigMode(handle) == [1, 1]
    assert read_layout(handle, A100) == ()
    assert pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) == 1410
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpuInstanceGetInfo(instance)


def test_a_gpu_in_use_is_not_reset_unless_it_is_lost(start: Start, work: Work) -> None:
    library = start("a100-40gb", activity=lambda _: work)
    (uuid,) = library.gpu_uuids
    pynvml.nvmlGpuInstanceCreateComputeInstance(create_a100(mig_gpu(), "3g.20gb", 4), 2)
    work.held = set(mig_uuids(gpu()))
    with pytest.raises(FailedPrecondition, match="in use"):
        library.reset(uuid)
    assert read_layout(gpu(), A100) != ()

    library.lose(uuid)
    library.reset(uuid)
    assert read_layout(gpu(), A100) == ()
    with pytest.raises(NotFound):
        library.reset("GPU-none")


# ---- modes that wait ---------------------------------------------------------------------------


def test_a_pending_mode_comes_into_force_with_a_reset(start: Start, work: Work) -> None:
    library = start(activity=lambda _: work)
    (uuid,) = library.gpu_uuids
    work.held = {uuid}
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_ERROR_IN_USE
    work.held = set()
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 1], "an idle GPU alone changes nothing"

    library.reset(uuid)

    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]


def test_in_a_virtual_machine_a_mode_needs_a_reset(start: Start) -> None:
    """MIG user guide, A100 passed through to a VM: the mode stays pending until a reboot."""
    library = start(passthrough=True)

    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_ERROR_RESET_REQUIRED
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 1]
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 0) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 0]
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_ERROR_RESET_REQUIRED
    library.reset(library.gpu_uuids[0])
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]

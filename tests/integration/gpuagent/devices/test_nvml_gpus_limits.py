"""The agent's device port over simulated NVML: mode, power, clocks, rights and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.core.device_port import NO_METER, Permissions
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.gpuagent.devices.fake_nvml.fake_node import UNPRIVILEGED
from services.gpuagent.devices.nvml.energy import EnergyMeter
from services.gpuagent.devices.nvml.errors import translated
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServiceError,
    Unavailable,
)
from services.kit.mig import WHOLE
from tests.support.gpuagent.nvml_faults import FaultyNvml, InjectedFault

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Open, Start, Time, Work

THREE, ONE = Placement("3g.20gb", 4), Placement("1g.5gb", 6)


def info(port: NvmlGpus, uuid: str) -> GpuInfo:
    return next(gpu for gpu in port.list() if gpu.uuid == uuid)


def placements(port: NvmlGpus, uuid: str) -> list[Placement]:
    return [placement for placement, _ in info(port, uuid).slices]


# ---- mode --------------------------------------------------------------------------------------


def test_mig_mode_waits_for_an_idle_gpu(library: FaultyNvml, work: Work, gpus: Open) -> None:
    port, uuid = gpus(), library.gpu_uuids[0]
    work.held = {uuid}
    with pytest.raises(FailedPrecondition, match="still uses"):
        port.set_mig_mode(uuid, enabled=True)
    assert not info(port, uuid).mig_enabled

    work.held = set()
    port.set_mig_mode(uuid, enabled=True)
    port.set_mig_mode(uuid, enabled=True)
    assert info(port, uuid).mig_enabled


def test_a_gpu_without_mig_cannot_enable_it(library: FaultyNvml, gpus: Open) -> None:
    with pytest.raises(FailedPrecondition, match="Not Supported"):
        gpus().set_mig_mode(library.gpu_uuids[1], enabled=True)


# ---- power and clocks --------------------------------------------------------------------------


def test_the_meter_is_a_model_where_the_gpu_is_one(
    library: FaultyNvml, work: Work, gpus: Open
) -> None:
    work.watts, work.joules, work.held = 45.0, 1000.0, {library.gpu_uuids[0]}
    reading = gpus().meter(library.gpu_uuids[0])

    assert (reading.power_w, reading.method) == (100.0, "model")
    assert reading.energy_j >= 1000.0


def test_the_meter_says_how_it_measures(library: FaultyNvml, clock: Time) -> None:
    """One port for all hardware: a counter, or the integral of power before Volta."""
    with NvmlGpus(simulated=False, monotonic=clock) as port:
        assert port.meter(library.gpu_uuids[0]).method == "counter"
        assert port.meter(library.gpu_uuids[2]).energy_j == 0
        clock.now_s += 10
        reading = port.meter(library.gpu_uuids[2])

    assert (reading.energy_j, reading.method) == (70.0, "integrated")


def test_a_counter_without_power_is_still_a_counter(library: FaultyNvml) -> None:
    library.inject(
        InjectedFault(Code.NOT_SUPPORTED, frozenset({"nvmlDeviceGetPowerUsage"}), times=None)
    )
    with NvmlGpus(simulated=False) as port:
        reading = port.meter(library.gpu_uuids[0])
        assert (reading.power_w, reading.method) == (None, "counter")
        with pytest.raises(FailedPrecondition) as missing:
            port.meter(library.gpu_uuids[2])

    assert missing.value.reason == NO_METER, (
        "neither value is reported: the energy must be modelled"
    )


def test_power_is_integrated_by_trapezoids() -> None:
    meter = EnergyMeter()
    samples = [(5.0, 100.0), (6.0, 200.0), (6.0, 0.0), (10.0, 50.0)]

    found = [meter.read(now_s, None, power_w) for now_s, power_w in samples]
    assert found == [(energy_j, "integrated") for energy_j in (0.0, 150.0, 150.0, 250.0)]


def test_a_counter_that_is_refused_for_a_while_goes_on_from_its_power() -> None:
    """Nothing is counted twice or lost, whether power said too much or too little meanwhile."""
    for after_j, expected_j in ((1350.0, 1350.0), (1200.0, 1300.0)):
        meter = EnergyMeter()
        assert meter.read(0.0, 1000.0, 100.0) == (1000.0, "counter")
        assert meter.read(1.0, None, 100.0) == (1100.0, "integrated")
        assert meter.read(2.0, None, None) is None
        assert meter.read(3.0, None, 100.0) == (1300.0, "integrated")
        assert meter.read(3.0, after_j, 100.0) == (expected_j, "counter")
        assert meter.read(4.0, 1400.0, None) == (1400.0, "counter")


def test_a_counter_that_restarts_while_it_is_refused_begins_again() -> None:
    meter = EnergyMeter()
    meter.read(0.0, 1000.0, 100.0)
    meter.read(1.0, None, 100.0)

    assert meter.read(2.0, 5.0, 100.0) == (5.0, "counter")


def test_a_clock_is_locked_within_the_supported_range_only(library: FaultyNvml, gpus: Open) -> None:
    port, uuid = gpus(), library.gpu_uuids[0]
    port.lock_clock(uuid, 1000)
    assert info(port, uuid).clock_mhz == 1005
    for clock_mhz in (209, 1411):
        with pytest.raises(InvalidArgument, match=r"210\.\.1410"):
            port.lock_clock(uuid, clock_mhz)
    assert info(port, uuid).clock_mhz == 1005
    port.reset_clock(uuid)
    assert info(port, uuid).clock_mhz == 1410


def test_pascal_cannot_lock_its_clock(library: FaultyNvml, gpus: Open) -> None:
    port = gpus()
    with pytest.raises(FailedPrecondition):
        port.lock_clock(library.gpu_uuids[2], 1000)
    with pytest.raises(FailedPrecondition):
        port.reset_clock(library.gpu_uuids[2])


# ---- rights and errors -------------------------------------------------------------------------


def _changes(port: NvmlGpus, uuid: str) -> list[Callable[[], object]]:
    return [
        lambda: port.create_slice(uuid, THREE),
        lambda: port.destroy_slice(uuid, THREE),
        lambda: port.set_mig_mode(uuid, enabled=True),
        lambda: port.lock_clock(uuid, 1000),
        lambda: port.reset_clock(uuid),
    ]


def _all_methods(port: NvmlGpus, uuid: str) -> list[Callable[[], object]]:
    return [*_changes(port, uuid), lambda: port.meter(uuid)]


def test_gpus_that_are_not_allowed_are_neither_listed_nor_touched(
    library: FaultyNvml, gpus: Open
) -> None:
    mine, other, _ = library.gpu_uuids
    port = gpus(allowed=[mine])

    assert [gpu.uuid for gpu in port.list()] == [mine]
    for call in _all_methods(port, other):
        with pytest.raises(PermissionDenied) as refused:
            call()
        assert refused.value.reason == "GPU_NOT_ALLOWED"


def test_what_is_no_gpu_is_not_found(cut: tuple[NvmlGpus, str]) -> None:
    """A slice is not found either: clocks and power belong to whole GPUs."""
    port, uuid = cut
    for wrong in ("GPU-00000000", port.create_slice(uuid, ONE)):
        for call in _all_methods(port, wrong):
            with pytest.raises(NotFound) as refused:
                call()
            assert refused.value.field == "gpu_uuid"


def test_without_root_reading_works_and_changes_name_the_missing_right(
    start: Start, gpus: Open
) -> None:
    (uuid,) = start("a100-40gb", rights=UNPRIVILEGED).gpu_uuids
    port = gpus()

    assert port.meter(uuid).power_w == 29.0
    assert placements(port, uuid) == [Placement(WHOLE, 0)]
    calls: list[Callable[[], object]] = [
        lambda: port.set_mig_mode(uuid, enabled=True),
        lambda: port.lock_clock(uuid, 1000),
    ]
    for call in calls:
        with pytest.raises(PermissionDenied, match="CAP_SYS_ADMIN"):
            call()


def test_an_agent_without_control_reads_and_refuses_every_change(library: FaultyNvml) -> None:
    """The refusal names the setting, so that its reader knows what to do."""
    uuid = library.gpu_uuids[0]
    permissions = Permissions(granted=False, setting="nodes.rack-7.control")
    with NvmlGpus(permissions=permissions) as port:
        for call in _changes(port, uuid):
            with pytest.raises(PermissionDenied, match=r"nodes\.rack-7\.control") as refused:
                call()
            assert refused.value.reason == "CONTROL_OFF"
        assert (port.meter(uuid).power_w or 0) > 0
        found = info(port, uuid)

    assert not found.mig_enabled
    assert found.clock_mhz == found.model.max_clock_mhz


# ---- lost GPUs ---------------------------------------------------------------------------------


def test_a_lost_gpu_is_left_out_and_the_others_go_on(library: FaultyNvml, gpus: Open) -> None:
    port, (lost, other, _) = gpus(), library.gpu_uuids
    library.lose(lost)

    assert [gpu.uuid for gpu in port.list()] == list(library.gpu_uuids[1:])
    assert port.present() == set(library.gpu_uuids[1:])
    port.lock_clock(other, 600)
    assert info(port, other).clock_mhz == 600
    for call in _all_methods(port, lost):
        with pytest.raises(Unavailable, match="fallen off the bus") as refused:
            call()
        assert refused.value.reason == "NVML_GPU_IS_LOST"


def test_a_gpu_that_is_lost_while_it_is_read_is_left_out(library: FaultyNvml, gpus: Open) -> None:
    port, (lost, *others) = gpus(), library.gpu_uuids
    library.inject(
        InjectedFault(Code.GPU_IS_LOST, frozenset({"nvmlDeviceGetIndex"}), gpu_uuid=lost)
    )

    assert [gpu.uuid for gpu in port.list()] == others
    assert len(port.list()) == 3


def test_a_driver_that_does_not_start_is_named(library: FaultyNvml) -> None:
    library.inject(InjectedFault.nth("nvmlInitWithFlags", Code.DRIVER_NOT_LOADED))
    with pytest.raises(FailedPrecondition, match="cannot start NVML") as refused, NvmlGpus():
        pass

    assert refused.value.reason == "NVML_DRIVER_NOT_LOADED"


def test_a_gpu_that_was_reset_is_back_after_nvml_was_reopened(
    library: FaultyNvml, gpus: Open
) -> None:
    port, (lost, *_) = gpus(), library.gpu_uuids
    port.set_mig_mode(lost, enabled=True)
    port.create_slice(lost, THREE)
    library.lose(lost)
    library.reset(lost)

    port.reopen()

    assert placements(port, lost) == []
    assert info(port, lost).mig_enabled


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (pynvml.NVML_ERROR_NO_PERMISSION, PermissionDenied),
        (pynvml.NVML_ERROR_NOT_FOUND, NotFound),
        (pynvml.NVML_ERROR_INVALID_ARGUMENT, InvalidArgument),
        (pynvml.NVML_ERROR_IN_USE, FailedPrecondition),
        (pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES, FailedPrecondition),
        (pynvml.NVML_ERROR_RESET_REQUIRED, FailedPrecondition),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, FailedPrecondition),
        (pynvml.NVML_ERROR_GPU_IS_LOST, Unavailable),
        (pynvml.NVML_ERROR_TIMEOUT, Unavailable),
        (pynvml.NVML_ERROR_UNKNOWN, Unavailable),
    ],
)
def test_each_nvml_error_becomes_ours_with_its_name(code: int, expected: Any) -> None:
    with pytest.raises(ServiceError) as raised, translated("do a thing"):
        raise pynvml.NVMLError(code)

    assert type(raised.value) is expected
    assert raised.value.reason.startswith("NVML_")
    assert raised.value.reason.isupper()
    assert raised.value.message.startswith("cannot do a thing: ")
    assert isinstance(raised.value.__cause__, pynvml.NVMLError)

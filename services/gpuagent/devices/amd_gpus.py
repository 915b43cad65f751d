"""The AMD GPUs of a node through AMD SMI, real or simulated alike: read, metered, clocked, whole.

Calls block; make them from one thread. AMD's compute partitions are not used: a GPU is one slice.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Self

from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.core.device_port import (
    ALL_GRANTED,
    NO_METER,
    MeterReading,
    Permissions,
)
from services.gpuagent.core.gpu_info import GpuInfo, GpuReading, SliceReading
from services.gpuagent.devices.amd.smi import amdsmi, translated
from services.gpuagent.devices.nvml.energy import EnergyMeter
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServiceError,
)
from services.kit.hardware.boards import DriverReading, identify, table_of
from services.kit.hardware.gpu_types import GpuModel, whole_geometry
from services.kit.mig import WHOLE
from services.kit.units import BYTES_PER_MIB

UNCUT: Final = Placement(WHOLE, 0)

_CLOCK_STEPS: Final = 128
"""Clocks of the range that are listed: AMD's driver takes any."""

_XCDS: Final = 8
"""Compute slices of a GPU without a table: the dies of an MI300."""


class AmdGpus:
    """GPUs behind AMD SMI; the methods and errors are those of `NvmlGpus`.

    Args:
        allowed: UUIDs of the GPUs that may be touched; None: all.
        permissions: Whether they may be changed.
        simulated: The library below is the stand-in: energy is modelled.
        monotonic: Seconds, for integrating power.
    """

    def __init__(
        self,
        *,
        allowed: Collection[str] | None = None,
        permissions: Permissions = ALL_GRANTED,
        simulated: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = None if allowed is None else frozenset(allowed)
        self._permissions = permissions
        self._simulated = simulated
        self._monotonic = monotonic
        self._meters: defaultdict[str, EnergyMeter] = defaultdict(EnergyMeter)
        self._models: dict[str, GpuModel] = {}
        self._handles: dict[str, Any] = {}
        self._kept: frozenset[str] | None = None
        self._refused: dict[str, dict[str, str]] = {}

    def __enter__(self) -> Self:
        with translated("start AMD SMI"):
            amdsmi().amdsmi_init()
            self._handles = {
                str(_enumerated(handle)["hip_uuid"]): handle
                for handle in amdsmi().amdsmi_get_processor_handles()
            }
        return self

    def __exit__(self, *_: object) -> None:
        with translated("stop AMD SMI"):
            amdsmi().amdsmi_shut_down()

    def reopen(self) -> None:
        """Restart AMD SMI; a GPU that came back after a reset is seen only then."""
        self.__exit__()
        self.__enter__()

    def keep(self, gpu_uuids: Collection[str]) -> None:
        """Work with these GPUs from now on; others that answer later wait for the next start."""
        self._kept = frozenset(gpu_uuids)

    def list(self) -> tuple[GpuInfo, ...]:
        """Return the GPUs that may be touched and answer, by index."""
        found = []
        for uuid in self._handles:
            if self._may(uuid):
                try:
                    found.append(self.get(uuid))
                except ServiceError as error:
                    self._refused[uuid] = {"amdsmi": error.message}
        return tuple(found)

    def get(self, gpu_uuid: str) -> GpuInfo:
        """Return one GPU as it is now.

        Raises:
            ServiceError: It cannot be read now.
        """
        handle = self._handle(gpu_uuid)
        with translated(f"read {gpu_uuid}"):
            info = GpuInfo(
                uuid=gpu_uuid,
                index=tuple(self._handles).index(gpu_uuid),
                model=self._model(gpu_uuid, handle),
                mig_enabled=False,
                slices=((UNCUT, gpu_uuid),),
                clock_mhz=_number(_clock(handle)["clk"]) or 0,
            )
        self._refused.pop(gpu_uuid, None)
        return info

    def refused(self) -> Mapping[str, Mapping[str, str]]:
        """Return the queries refused lately, by GPU; no call."""
        return dict(self._refused)

    def readings(self) -> tuple[GpuReading, ...]:
        """Return the GPUs with what they use now, by index."""
        return tuple(
            GpuReading(gpu, (SliceReading(UNCUT, gpu.uuid, None, gpu.model.memory_bytes, None),))
            for gpu in self.list()
        )

    def present(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs that may be touched and answer."""
        return frozenset(gpu.uuid for gpu in self.list())

    def create_slice(self, gpu_uuid: str, placement: Placement) -> str:
        """Return the UUID of the GPU, which is its only slice.

        Raises:
            InvalidArgument: Another slice is meant.
        """
        self._changeable(gpu_uuid)
        self._require_whole(placement)
        return gpu_uuid

    def destroy_slice(self, gpu_uuid: str, placement: Placement) -> None:
        """Do nothing: the whole of a GPU always exists.

        Raises:
            InvalidArgument: Another slice is meant.
        """
        self._changeable(gpu_uuid)
        self._require_whole(placement)

    def set_mig_mode(self, gpu_uuid: str, *, enabled: bool) -> None:
        """Accept that there is none.

        Raises:
            FailedPrecondition: It is to be on.
        """
        self._changeable(gpu_uuid)
        if enabled:
            raise FailedPrecondition(f"{gpu_uuid} is AMD's: it has no MIG mode", reason="NO_MIG")

    def meter(self, gpu_uuid: str) -> MeterReading:
        """Return energy and power of the GPU, its idle power included.

        Raises:
            FailedPrecondition: The GPU reports neither; the reason is NO_METER.
        """
        handle, counter_j, power_w = self._handle(gpu_uuid), None, None
        with translated(f"read the power of {gpu_uuid}"):
            found = amdsmi().amdsmi_get_power_info(handle)
            power_w = _watts(found["current_socket_power"], found["average_socket_power"])
        try:
            with translated(f"read the energy of {gpu_uuid}"):
                count = amdsmi().amdsmi_get_energy_count(handle)
                counter_j = 1e-6 * count["energy_accumulator"] * count["counter_resolution"]
        except FailedPrecondition:  # no counter: power over time
            counter_j = None
        metered = self._meters[gpu_uuid].read(self._monotonic(), counter_j, power_w)
        if metered is None:
            raise FailedPrecondition(
                f"{gpu_uuid} reports neither its energy nor its power", reason=NO_METER
            )
        energy_j, method = metered
        return MeterReading(energy_j, power_w, "model" if self._simulated else method)

    def lock_clock(self, gpu_uuid: str, clock_mhz: int) -> None:
        """Limit the clock of the compute units.

        Raises:
            InvalidArgument: Outside the supported range.
        """
        handle = self._changeable(gpu_uuid)
        with translated(f"lock the clock of {gpu_uuid}"):
            self._model(gpu_uuid, handle).check_clock(clock_mhz)
            amdsmi().amdsmi_set_gpu_clk_limit(handle, "sclk", "max", clock_mhz)

    def reset_clock(self, gpu_uuid: str) -> None:
        """Lift the limit of the clock: the driver chooses."""
        handle = self._changeable(gpu_uuid)
        with translated(f"unlock the clock of {gpu_uuid}"):
            auto = amdsmi().AmdSmiDevPerfLevel.AUTO
            amdsmi().amdsmi_set_gpu_perf_level(handle, auto)

    # ---- helpers

    def _may(self, gpu_uuid: str) -> bool:
        allowed = self._allowed is None or gpu_uuid in self._allowed
        return allowed and (self._kept is None or gpu_uuid in self._kept)

    def _changeable(self, gpu_uuid: str) -> Any:
        self._permissions.require()
        return self._handle(gpu_uuid)

    def _handle(self, gpu_uuid: str) -> Any:
        if self._allowed is not None and gpu_uuid not in self._allowed:
            raise PermissionDenied(
                f"this agent may not touch {gpu_uuid}", reason="GPU_NOT_ALLOWED", field="gpu_uuid"
            )
        if gpu_uuid not in self._handles:
            raise NotFound(f"this node has no GPU {gpu_uuid}", field="gpu_uuid")
        return self._handles[gpu_uuid]

    def _model(self, gpu_uuid: str, handle: Any) -> GpuModel:
        if gpu_uuid not in self._models:
            self._models[gpu_uuid] = _model(handle)
        return self._models[gpu_uuid]

    @staticmethod
    def _require_whole(placement: Placement) -> None:
        if placement != UNCUT:
            raise InvalidArgument(
                f"no profile {placement.profile!r}: AMD's GPUs serve as a whole",
                field="placement.profile",
            )


def _model(handle: Any) -> GpuModel:
    """Return what a GPU is, by its driver."""
    asic = amdsmi().amdsmi_get_gpu_asic_info(handle)
    memory_bytes = amdsmi().amdsmi_get_gpu_vram_info(handle)["vram_size"] * BYTES_PER_MIB
    clock, cap = _clock(handle), amdsmi().amdsmi_get_power_cap_info(handle)
    low, high = _number(clock["min_clk"]) or 1, _number(clock["max_clk"]) or 1
    name = str(asic["market_name"])
    table = table_of(name, memory_bytes)
    high = max(high, table.max_clock_mhz if table else 0)  # not what it is limited to now
    found = identify(
        DriverReading(
            product_name=name,
            memory_bytes=memory_bytes,
            compute_capability=_capability(str(asic["target_graphics_version"])),
            sm_count=_number(asic["num_compute_units"]),
            max_clock_mhz=high,
            limit_w=cap["default_power_cap"] / 1e6 or None,
            maker="amd",
        )
    )
    kinds = table.geometry.kinds if table else ()
    return GpuModel(
        name=found.name,
        product_name=name,
        geometry=whole_geometry(
            compute_slices=max((kind.compute_slices for kind in kinds), default=_XCDS),
            sm_count=found.sm_count,
            memory_bytes=memory_bytes,
        ),
        sm_count=found.sm_count,
        memory_bytes=memory_bytes,
        idle_power_w=found.idle_power_w,
        context_power_w=found.context_power_w,
        max_power_w=found.max_power_w,
        clocks_mhz=(*range(high, low, -max((high - low) // _CLOCK_STEPS, 1)), low),
        performance=found.performance,
        maker="amd",
    )


def _enumerated(handle: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = amdsmi().amdsmi_get_gpu_enumeration_info(handle)
    return found


def _clock(handle: Any) -> Mapping[str, Any]:
    kind = amdsmi().AmdSmiClkType.GFX
    found: Mapping[str, Any] = amdsmi().amdsmi_get_clock_info(handle, kind)
    return found


def _capability(version: str) -> tuple[int, int]:
    """Return gfx942 as (9, 0x42), gfx90a as (9, 0xa)."""
    digits = version.removeprefix("gfx")
    try:
        return int(digits[:-2]), int(digits[-2:], 16)
    except ValueError:
        return 0, 0


def _number(value: Any) -> int | None:
    """Return a number; None where AMD SMI has "N/A"."""
    return value if isinstance(value, int) and value > 0 else None


def _watts(*values: Any) -> float | None:
    """Return the first power that the GPU reports."""
    return next((float(each) for each in values if _number(each) is not None), None)

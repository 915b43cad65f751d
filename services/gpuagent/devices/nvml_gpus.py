"""The GPUs of a node through NVML, real or simulated alike.

Calls block; make them from one thread. GPUs are named by UUID and slices by placement, never by
index or handle: both may change when a slice comes or goes.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from ctypes import byref
from typing import Any, Self

import pynvml

from cinquefoil.gpuagent.v1.records import Placement, SliceProfile
from services.gpuagent.core.device_port import (
    ALL_GRANTED,
    NO_METER,
    MeterReading,
    Method,
    Permissions,
)
from services.gpuagent.core.gpu_info import GpuInfo, GpuReading, SliceReading
from services.gpuagent.devices.nvml import reading
from services.gpuagent.devices.nvml.energy import PowerIntegral, thousandths
from services.gpuagent.devices.nvml.errors import LOST, translated
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from services.kit.hardware.gpu_types import GpuModel
from services.kit.mig import WHOLE


class NvmlGpus:
    """GPUs behind NVML. A context manager: NVML is initialised inside the block.

    Every method may raise PermissionDenied (the GPU is not in `allowed`, the deployment does not
    let the agent change GPUs, or the process lacks a right), NotFound (no such GPU), Unavailable
    (the driver cannot answer now, or the GPU has fallen off the bus).

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
        self._integrals: defaultdict[str, PowerIntegral] = defaultdict(PowerIntegral)
        self._models: dict[tuple[str, bool], GpuModel] = {}

    def __enter__(self) -> Self:
        with translated("start NVML"):
            pynvml.nvmlInit()
        return self

    def __exit__(self, *_: object) -> None:
        with translated("stop NVML"):
            pynvml.nvmlShutdown()

    def reopen(self) -> None:
        """Restart NVML; a GPU that came back after a reset is seen only then."""
        with suppress(Unavailable):  # it was not even started
            self.__exit__()
        self.__enter__()

    def list(self) -> tuple[GpuInfo, ...]:
        """Return the GPUs that may be touched and are not lost, by index."""
        with translated("list the GPUs"):
            found = [(uuid, handle) for uuid, handle in reading.present() if self._may(uuid)]
        infos = []
        for uuid, handle in found:
            try:
                infos.append(self._info(uuid, handle))
            except Unavailable as error:
                if error.reason != LOST:
                    raise
        return tuple(infos)

    def readings(self) -> tuple[GpuReading, ...]:
        """Return the GPUs with what their slices use now, by index."""
        return tuple(GpuReading(gpu, tuple(_slice_readings(gpu))) for gpu in self.list())

    def present(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs that may be touched and answer."""
        with translated("look for the GPUs"):
            return frozenset(uuid for uuid, _ in reading.present() if self._may(uuid))

    def create_slice(self, gpu_uuid: str, placement: Placement) -> str:
        """Make sure that a slice exists; return its UUID, read back.

        Raises:
            InvalidArgument: The GPU has no such slice kind, or not there.
            FailedPrecondition: MIG mode is off, or another slice is in the way.
        """
        handle = self._changeable(gpu_uuid)
        kind = self._kind(gpu_uuid, handle, placement)
        if kind.name == WHOLE:
            return gpu_uuid
        with translated(f"create {placement} on {gpu_uuid}"):
            found = self._instance(gpu_uuid, handle, placement)
            if found is None:
                _create(handle, kind, placement)
            elif not found.devices:  # a crash came between the two steps of creating it
                _create_compute(found.handle, kind)
            created = self._instance(gpu_uuid, handle, placement)
        if created is None:
            raise Unavailable(f"{placement} on {gpu_uuid} is gone right after it was created")
        if not created.complete:
            raise FailedPrecondition(
                f"{placement} on {gpu_uuid} is divided into compute instances that are not ours",
                reason="SLICE_DIVIDED",
            )
        return created.devices[0]

    def destroy_slice(self, gpu_uuid: str, placement: Placement) -> None:
        """Make sure that a slice does not exist; the whole of an uncut GPU always does.

        Raises:
            InvalidArgument: The GPU has no such slice kind, or not there.
            FailedPrecondition: A process uses the slice, or MIG mode is off.
        """
        handle = self._changeable(gpu_uuid)
        if self._kind(gpu_uuid, handle, placement).name == WHOLE:
            return
        with translated(f"destroy {placement} on {gpu_uuid}"):
            found = self._instance(gpu_uuid, handle, placement)
            if found is not None:
                _destroy(found.handle)

    def set_mig_mode(self, gpu_uuid: str, *, enabled: bool) -> None:
        """Make sure that MIG mode is on, or off.

        Raises:
            FailedPrecondition: The GPU has no MIG mode, is in use, or needs a reset first; the
                mode then stays pending until the former one is requested.
        """
        handle, mode = self._changeable(gpu_uuid), "on" if enabled else "off"
        with translated(f"switch {mode} MIG mode of {gpu_uuid}"):
            # A request for the mode in force withdraws the pending one.
            if reading.mig_mode(handle) != (enabled, enabled):
                # That it is not in force yet, and why, NVML returns as the call's value.
                status = pynvml.nvmlDeviceSetMigMode(handle, int(enabled))
                if status != pynvml.NVML_SUCCESS:
                    raise pynvml.NVMLError(status)
        with translated(f"read the MIG mode of {gpu_uuid}"):
            # Switching may take the GPU off the bus and back: the handle is another.
            found = reading.mig_mode(self._handle(gpu_uuid))
        if found != (enabled, enabled):
            raise FailedPrecondition(
                f"MIG mode of {gpu_uuid} is pending; reset the GPU or reboot",
                reason="MIG_MODE_PENDING",
            )

    def meter(self, gpu_uuid: str) -> MeterReading:
        """Return energy and power of the whole GPU, its slices and its idle power included.

        Raises:
            FailedPrecondition: The GPU reports neither; the reason is NO_METER.
        """
        handle = self._handle(gpu_uuid)
        method: Method = "counter"
        with translated(f"read the power of {gpu_uuid}"):
            power_w = thousandths(pynvml.nvmlDeviceGetPowerUsage, handle)
            # Volta or newer
            energy_j = thousandths(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        if energy_j is None:
            if power_w is None:
                raise FailedPrecondition(
                    f"{gpu_uuid} reports neither its energy nor its power", reason=NO_METER
                )
            method = "integrated"
            energy_j = self._integrals[gpu_uuid].add(self._monotonic(), power_w)
        return MeterReading(energy_j, power_w, "model" if self._simulated else method)

    def lock_clock(self, gpu_uuid: str, clock_mhz: int) -> None:
        """Lock the SM clock at the supported one nearest to it; all slices of the GPU share it.

        Raises:
            InvalidArgument: Outside the supported range.
            FailedPrecondition: The GPU cannot lock its clock.
        """
        handle = self._changeable(gpu_uuid)
        with translated(f"lock the clock of {gpu_uuid}"):
            self._model(gpu_uuid, handle).check_clock(clock_mhz)
            pynvml.nvmlDeviceSetGpuLockedClocks(handle, clock_mhz, clock_mhz)

    def reset_clock(self, gpu_uuid: str) -> None:
        """Unlock the SM clock.

        Raises:
            FailedPrecondition: The GPU cannot lock its clock.
        """
        handle = self._changeable(gpu_uuid)
        with translated(f"unlock the clock of {gpu_uuid}"):
            pynvml.nvmlDeviceResetGpuLockedClocks(handle)

    # ---- helpers

    def _may(self, gpu_uuid: str) -> bool:
        return self._allowed is None or gpu_uuid in self._allowed

    def _changeable(self, gpu_uuid: str) -> Any:
        self._permissions.require()
        return self._handle(gpu_uuid)

    def _handle(self, gpu_uuid: str) -> Any:
        if not self._may(gpu_uuid):
            raise PermissionDenied(
                f"this agent may not touch {gpu_uuid}", reason="GPU_NOT_ALLOWED", field="gpu_uuid"
            )
        if not gpu_uuid.startswith("GPU-"):
            raise NotFound(f"{gpu_uuid} is no GPU", field="gpu_uuid")
        with translated(f"find {gpu_uuid}", "gpu_uuid"):
            return reading.by_uuid(gpu_uuid)

    def _model(self, gpu_uuid: str, handle: Any) -> GpuModel:
        """Return the model; nvml.h: geometry is immutable for the lifetime of a MIG mode."""
        key = (gpu_uuid, reading.mig_mode(handle)[0])
        if key not in self._models:
            self._models[key] = reading.model(handle)
        return self._models[key]

    def _info(self, uuid: str, handle: Any) -> GpuInfo:
        with translated(f"read {uuid}"):
            model = self._model(uuid, handle)
            enabled, pending = reading.mig_mode(handle)
            found = reading.instances(handle, model.geometry) if enabled else ()
            slices: tuple[tuple[Placement, str], ...] = ((Placement(WHOLE, 0), uuid),)
            if enabled:
                slices = tuple((e.placement, e.devices[0]) for e in found if e.complete)
            return GpuInfo(
                uuid=uuid,
                index=pynvml.nvmlDeviceGetIndex(handle),
                model=model,
                mig_enabled=enabled,
                slices=slices,
                clock_mhz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                mig_pending=pending,
                leftovers=tuple(e.placement for e in found if not e.devices),
                divided=tuple(e.placement for e in found if e.devices and not e.complete),
            )

    def _kind(self, gpu_uuid: str, handle: Any, placement: Placement) -> SliceProfile:
        """Return the slice kind of a placement that the GPU could have."""
        with translated(f"read {gpu_uuid}"):
            model = self._model(gpu_uuid, handle)
        problem = model.geometry.problem([placement])
        if not problem:
            return model.geometry.kind(placement.profile)
        if model.geometry.kinds[0].name == WHOLE and placement.profile != WHOLE:
            raise FailedPrecondition(
                f"{gpu_uuid} is not in MIG mode: it has one slice, {WHOLE}", reason="MIG_DISABLED"
            )
        raise InvalidArgument(f"{gpu_uuid}: {problem}", field="placement")

    def _instance(
        self, gpu_uuid: str, handle: Any, placement: Placement
    ) -> reading.Instance | None:
        geometry = self._model(gpu_uuid, handle).geometry
        found = reading.instances(handle, geometry)
        return next((entry for entry in found if entry.placement == placement), None)


def _slice_readings(gpu: GpuInfo) -> Iterator[SliceReading]:
    for placement, uuid in gpu.slices:
        with translated(f"read {uuid}"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            number = pynvml.nvmlDeviceGetGpuInstanceId(handle) if gpu.mig_enabled else None
            used_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle).used
        memory_bytes = gpu.model.geometry.kind(placement.profile).memory_bytes
        yield SliceReading(placement, uuid, number, memory_bytes, used_bytes)


# ---- changes of more than one call; they let NVML's errors through -------------------------------


def _create(device: Any, kind: SliceProfile, placement: Placement) -> None:
    """Create a GPU instance and the compute instance that takes all of it, or neither."""
    where = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, kind.memory_slices)
    instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
        device, kind.gpu_instance_profile_id, byref(where)
    )
    try:
        _create_compute(instance, kind)
    except pynvml.NVMLError:
        pynvml.nvmlGpuInstanceDestroy(instance)
        raise


def _create_compute(instance: Any, kind: SliceProfile) -> None:
    """Create the compute instance that takes all of a GPU instance."""
    profile_id = reading.full_compute_profile_id(instance, kind.compute_slices)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile_id)


def _destroy(instance: Any) -> None:
    """Destroy a GPU instance; its compute instances first, as nvml.h demands."""
    for compute in reading.compute_instances(instance):
        pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)

"""The GPUs of a node through NVML, real or simulated alike.

Calls block; make them from one thread. GPUs are named by UUID and slices by placement, never by
index or handle: both may change when a slice comes or goes.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import byref
from typing import Any, Final, Self

import pynvml

from cinquefoil.gpuagent.v1.records import Placement, SliceProfile
from services.gpuagent.core.device_port import (
    ALL_GRANTED,
    NO_METER,
    MeterReading,
    Permissions,
    PowerLimits,
)
from services.gpuagent.core.gpu_info import GpuInfo, GpuReading, SliceReading
from services.gpuagent.devices.nvml import reading
from services.gpuagent.devices.nvml.energy import EnergyMeter
from services.gpuagent.devices.nvml.errors import LOST, query_of, spoken, translated
from services.gpuagent.devices.nvml.queries import Board, Refusals
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServiceError,
    Unavailable,
)
from services.kit.hardware.gpu_types import GpuModel
from services.kit.mig import WHOLE

_METER_WAIT_S: Final = 10.0
"""Time without a meter, s, after which a GPU that had one counts as one that has none."""


class NvmlGpus:
    """GPUs behind NVML. A context manager: NVML is initialised inside the block.

    A query that the driver refuses about one GPU leaves its other figures and the other GPUs as
    they are; `refused` names it. A GPU that cannot be read is as it was last read, or left out.

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
        self._meters: defaultdict[str, EnergyMeter] = defaultdict(EnergyMeter)
        self._models: dict[tuple[str, bool], GpuModel] = {}
        self._places: dict[int, Refusals] = {}
        self._found: dict[int, Board] = {}
        self._boards: dict[str, Board] = {}
        self._last: dict[str, GpuInfo] = {}
        self._kept: frozenset[str] | None = None

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
        self._found.clear()  # handles end with it, and indices may change
        self.__enter__()

    def keep(self, gpu_uuids: Collection[str]) -> None:
        """Work with these GPUs from now on; others that answer later wait for the next start."""
        self._kept = frozenset(gpu_uuids)

    def list(self) -> tuple[GpuInfo, ...]:
        """Return the GPUs that may be touched and are not lost, by index.

        One that cannot be read is as it was last read; where it never was, it is left out.
        """
        with translated("list the GPUs"):
            found = tuple(self._present())
        infos = []
        for index, board in found:
            try:
                infos.append(self._info(index, board))
            except ServiceError as error:
                if error.reason != LOST and board.uuid in self._last:
                    infos.append(self._last[board.uuid])
        return tuple(infos)

    def get(self, gpu_uuid: str) -> GpuInfo:
        """Return one GPU as it is now.

        Raises:
            ServiceError: It cannot be read now.
        """
        with translated(f"find {gpu_uuid}", "gpu_uuid"):
            found = tuple(self._present())
        for index, board in found:
            if board.uuid == gpu_uuid:
                return self._info(index, board)
        raise NotFound(f"this node has no GPU {gpu_uuid}", field="gpu_uuid")

    def refused(self) -> Mapping[str, Mapping[str, str]]:
        """Return the queries refused lately, by GPU, each with the driver's words; no call."""
        places = {f"GPU {index}": each for index, each in dict(self._places).items()}
        boards = {uuid: board.refusals for uuid, board in dict(self._boards).items()}
        found = {name: each.present for name, each in {**places, **boards}.items()}
        return {name: each for name, each in found.items() if each}

    def readings(self) -> tuple[GpuReading, ...]:
        """Return the GPUs with what their slices use now, by index."""
        return tuple(
            GpuReading(gpu, tuple(self._slice_readings(gpu, self._boards[gpu.uuid])))
            for gpu in self.list()
        )

    def present(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs that may be touched and answer."""
        with translated("look for the GPUs"):
            return frozenset(board.uuid for _, board in self._present())

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
        noted = _noted(self._board(gpu_uuid, handle), *_NO_CHANGE)
        with translated(f"switch {mode} MIG mode of {gpu_uuid}"), noted:
            # A request for the mode in force withdraws the pending one.
            if reading.mig_mode(handle) != (enabled, enabled):
                # That it is not in force yet, and why, NVML returns as the call's value.
                status = pynvml.nvmlDeviceSetMigMode(handle, int(enabled))
                if status != pynvml.NVML_SUCCESS:
                    raise pynvml.NVMLError(status)
        with translated(f"read the MIG mode of {gpu_uuid}"):
            # Switching may take the GPU off the bus and back: the handle is another.
            found = reading.mig_mode(self._handle(gpu_uuid))
        self._last.pop(gpu_uuid, None)  # it is cut, or not, in other ways than before
        if found != (enabled, enabled):
            raise FailedPrecondition(
                f"MIG mode of {gpu_uuid} is pending; reset the GPU or reboot",
                reason="MIG_MODE_PENDING",
            )

    def meter(self, gpu_uuid: str) -> MeterReading:
        """Return energy and power of the whole GPU, its slices and its idle power included.

        Raises:
            Unavailable: The driver refuses both, and lately did not: the next reading has it all.
            FailedPrecondition: The GPU reports neither; the reason is NO_METER.
        """
        board = self._board(gpu_uuid, self._handle(gpu_uuid))
        with translated(f"read the power of {gpu_uuid}"):
            power_mw = board.now(pynvml.nvmlDeviceGetPowerUsage)
            # Volta or newer
            counter_mj = board.now(pynvml.nvmlDeviceGetTotalEnergyConsumption)
        power_w = None if power_mw is None else power_mw / 1000
        counter_j = None if counter_mj is None else counter_mj / 1000
        meter, now_s = self._meters[gpu_uuid], self._monotonic()
        found = meter.read(now_s, counter_j, power_w)
        if found is None and now_s < meter.known_at_s + _METER_WAIT_S:
            name = pynvml.nvmlDeviceGetPowerUsage.__name__
            why = board.refusals.present.get(name, "no answer")
            raise Unavailable(f"cannot read the power of {gpu_uuid}: {name}: {why}")
        if found is None:
            raise FailedPrecondition(
                f"{gpu_uuid} reports neither its energy nor its power", reason=NO_METER
            )
        energy_j, method = found
        return MeterReading(energy_j, power_w, "model" if self._simulated else method)

    def lock_clock(self, gpu_uuid: str, clock_mhz: int) -> None:
        """Lock the SM clock at the supported one nearest to it; all slices of the GPU share it.

        Raises:
            InvalidArgument: Outside the supported range.
            FailedPrecondition: The GPU cannot lock its clock.
        """
        handle = self._changeable(gpu_uuid, clocks=True)
        with translated(f"lock the clock of {gpu_uuid}"):
            self._model_of(gpu_uuid, handle).check_clock(clock_mhz)
            pynvml.nvmlDeviceSetGpuLockedClocks(handle, clock_mhz, clock_mhz)

    def reset_clock(self, gpu_uuid: str) -> None:
        """Unlock the SM clock.

        Raises:
            FailedPrecondition: The GPU cannot lock its clock.
        """
        handle = self._changeable(gpu_uuid, clocks=True)
        with translated(f"unlock the clock of {gpu_uuid}"):
            pynvml.nvmlDeviceResetGpuLockedClocks(handle)

    def power_limits_w(self, gpu_uuid: str) -> PowerLimits:
        """Return a GPU's power limit, and what it may be set to.

        Raises:
            FailedPrecondition: The GPU has no power limit; which query was refused is noted.
        """
        handle = self._handle(gpu_uuid)
        noted = _noted(self._board(gpu_uuid, handle))
        with translated(f"read the power limit of {gpu_uuid}"), noted:
            least_mw, most_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            default_mw = pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
            now_mw = pynvml.nvmlDeviceGetPowerManagementLimit(handle)
        return PowerLimits(*(1e-3 * mw for mw in (least_mw, most_mw, default_mw, now_mw)))

    def limit_power(self, gpu_uuid: str, limit_w: float) -> float:
        """Set a GPU's power limit within the board's constraints; return what it then has, W.

        Raises:
            FailedPrecondition: The GPU has no power limit.
        """
        handle = self._changeable(gpu_uuid)
        with translated(f"limit the power of {gpu_uuid}"):
            least_mw, most_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            limit_mw = min(max(round(1e3 * limit_w), least_mw), most_mw)
            pynvml.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)
            return 1e-3 * float(pynvml.nvmlDeviceGetPowerManagementLimit(handle))

    # ---- helpers

    def _may(self, gpu_uuid: str) -> bool:
        return self._allowed is None or gpu_uuid in self._allowed

    def _present(self) -> Iterator[tuple[int, Board]]:
        """Yield the GPUs that may be touched and have not fallen off the bus, by index."""
        for index in range(pynvml.nvmlDeviceGetCount()):
            board = self._at(index)
            if board is None or not self._may(board.uuid):
                continue
            if self._kept is None or board.uuid in self._kept:
                yield index, board
            else:
                board.refusals.note(
                    pynvml.nvmlDeviceGetHandleByIndex.__name__,
                    "it did not answer when the agent started, which uses it after a restart",
                )

    def _at(self, index: int) -> Board | None:
        """Return the GPU at an index; while the driver refuses to say, the one that was there."""
        place = self._places.setdefault(index, Refusals(self._monotonic))
        try:
            handle = place.attempt(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = handle and place.attempt(pynvml.nvmlDeviceGetUUID, handle)
        except pynvml.NVMLError_GpuIsLost:
            return None
        if not uuid:
            return self._found.get(index)
        self._found[index] = self._board(uuid, handle)
        return self._found[index]

    def _board(self, uuid: str, handle: Any) -> Board:
        """Return what is known of a GPU, whose handle may be another now."""
        if uuid not in self._boards:
            self._boards[uuid] = Board(uuid, handle, Refusals(self._monotonic))
        self._boards[uuid].handle = handle
        return self._boards[uuid]

    def _changeable(self, gpu_uuid: str, *, clocks: bool = False) -> Any:
        if not (clocks and self._permissions.clocks):
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
            try:
                return pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid.encode())
            except pynvml.NVMLError:
                # nvml.h: NVML_ERROR_GPU_IS_LOST "if any GPU has fallen off the bus".
                found = {board.uuid: board.handle for _, board in self._present()}
                if gpu_uuid not in found:
                    raise
                return found[gpu_uuid]

    def _model(self, board: Board, *, mig_enabled: bool) -> GpuModel:
        """Return the model; nvml.h: geometry is immutable for the lifetime of a MIG mode.

        A figure that was refused is queried again.
        """
        key = (board.uuid, mig_enabled)
        if key not in self._models or board.refusals.present:
            self._models[key] = reading.model(board, mig_enabled=mig_enabled)
        return self._models[key]

    def _model_of(self, gpu_uuid: str, handle: Any) -> GpuModel:
        board = self._board(gpu_uuid, handle)
        with translated(f"read {gpu_uuid}"):
            return self._model(board, mig_enabled=reading.mig_mode(handle)[0])

    def _info(self, index: int, board: Board) -> GpuInfo:
        """Return a GPU as it is now.

        Raises:
            ServiceError: It cannot be read; which query was refused is noted.
        """
        uuid, handle = board.uuid, board.handle
        with translated(f"read {uuid}"), _noted(board):
            enabled, pending = reading.latest_mig_mode(board)
            model = self._model(board, mig_enabled=enabled)
            found = reading.instances(handle, model.geometry) if enabled else ()
            slices: tuple[tuple[Placement, str], ...] = ((Placement(WHOLE, 0), uuid),)
            if enabled:
                slices = tuple((e.placement, e.devices[0]) for e in found if e.complete)
            number = board.now(pynvml.nvmlDeviceGetIndex)
            self._last[uuid] = info = GpuInfo(
                uuid=uuid,
                index=index if number is None else number,
                model=model,
                mig_enabled=enabled,
                slices=slices,
                clock_mhz=board.now(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM) or 0,
                mig_pending=pending,
                leftovers=tuple(e.placement for e in found if not e.devices),
                divided=tuple(e.placement for e in found if e.devices and not e.complete),
            )
            return info

    def _kind(self, gpu_uuid: str, handle: Any, placement: Placement) -> SliceProfile:
        """Return the slice kind of a placement that the GPU could have."""
        model = self._model_of(gpu_uuid, handle)
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
        geometry = self._model_of(gpu_uuid, handle).geometry
        found = reading.instances(handle, geometry)
        return next((entry for entry in found if entry.placement == placement), None)

    def _slice_readings(self, gpu: GpuInfo, board: Board) -> Iterator[SliceReading]:
        """Yield the GPU's slices; what the driver does not say of one is not known."""
        for placement, uuid in gpu.slices:
            number = used_bytes = None
            with suppress(pynvml.NVMLError):
                handle = board.handle
                if gpu.mig_enabled:
                    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
                    number = pynvml.nvmlDeviceGetGpuInstanceId(handle)
                used_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle).used
            memory_bytes = gpu.model.geometry.kind(placement.profile).memory_bytes
            yield SliceReading(placement, uuid, number, memory_bytes, used_bytes)


_NO_CHANGE: Final = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_InUse,
    pynvml.NVMLError_ResetRequired,
)
"""Answers of healthy boards without MIG mode, or in a state in which it cannot change."""


@contextmanager
def _noted(board: Board, *expected: type[pynvml.NVMLError]) -> Iterator[None]:
    """Note a refusal that the block does not survive."""
    try:
        yield
    except pynvml.NVMLError as error:
        if not isinstance(error, expected):
            board.refusals.note(query_of(error), spoken(error))
        raise


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

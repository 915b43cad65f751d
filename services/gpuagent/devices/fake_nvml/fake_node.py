"""The simulated GPUs of one node behind opaque handles, and who may call what."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Flag, auto
from itertools import count
from typing import Literal, NamedTuple

from services.gpuagent.devices.fake_nvml.core.gpu_state import GpuInstance
from services.gpuagent.devices.fake_nvml.core.return_codes import Code, Fault
from services.gpuagent.devices.fake_nvml.fake_gpu import FakeGpu, MigDevice


class Right(Flag):
    """Rights that NVML requires; reading a whole GPU needs none of them.

    Attributes:
        MONITOR: The device node of mig/monitor: look at MIG instances.
        CONFIG: The device node of mig/config: look at them, create and destroy them.
        ADMIN: Root or CAP_SYS_ADMIN: all of that ("you implicitly have access to all
            nvidia-capabilities", MIG user guide), MIG mode, clocks, power limit, compute mode.
    """

    MONITOR = auto()
    CONFIG = auto()
    ADMIN = auto()


UNPRIVILEGED = Right(0)
ROOT = Right.MONITOR | Right.CONFIG | Right.ADMIN
MIG_CHANGE = Right.CONFIG | Right.ADMIN
MIG_READ = Right.MONITOR | MIG_CHANGE
"""Any of them is enough. nvml.h says "privileged user" of reading and changing instances alike;
that mig/monitor is enough for reading is inferred from its name."""


HandleKind = Literal["device", "gpu instance", "compute instance", "gpm sample"]
_FIRST_HANDLE, _HANDLE_STEP = 0x5100_0000, 0x10  # look like addresses, but must not be dereferenced


@dataclass(slots=True, eq=False)
class GpmSample:
    """A sample of an instance's monitors.

    Attributes:
        name: Its handle's.
        at_s: When it was taken, s.
        busy_s: Time in which the instance's SMs were busy until then, s.
    """

    name: str
    at_s: float = 0.0
    busy_s: float = 0.0


class Handle(NamedTuple):
    """The object of a handle. Attributes: kind, name (never used again)."""

    kind: HandleKind
    name: str


class FakeNode:
    """The node that the simulated library reports.

    A handle names a thing by a word that is never used again, so that a handle to what was
    destroyed stays invalid even where its successor has the same id.

    Attributes:
        gpus: By index.
        rights: What the caller's process may do.
        lock: Held through each call of the library.
    """

    def __init__(self, gpus: Sequence[FakeGpu], *, rights: Right = ROOT) -> None:
        self.gpus = tuple(gpus)
        self.rights = rights
        self.lock = threading.RLock()
        self._users = 0
        self._numbers = count(_FIRST_HANDLE, _HANDLE_STEP)
        self._numbers_of: dict[Handle, int] = {}
        self._handles: dict[int, Handle] = {}
        self._gpm_samples: dict[str, GpmSample] = {}
        self._gpm_numbers = count()

    # ---- life

    def init(self) -> None:
        """Count one more user of the library; the first switches the GPUs on."""
        if not self._users:
            for gpu in self.gpus:
                gpu.power_on()
        self._users += 1

    def shutdown(self) -> None:
        """Count one user less."""
        self._users -= 1

    def admit(self, needs: Right) -> None:
        """Refuse a call before init, or without a right that it needs."""
        if not self._users:
            raise Fault(Code.UNINITIALIZED)
        if needs and not self.rights & needs:
            raise Fault(Code.NO_PERMISSION)

    def present(self, gpu: FakeGpu) -> FakeGpu:
        """Return a GPU.

        Raises:
            Fault: GPU_IS_LOST where it has fallen off the bus.
        """
        if gpu.lost:
            raise Fault(Code.GPU_IS_LOST)
        return gpu

    # ---- handles

    def handle(self, handle: Handle) -> int:
        """Return the number of a handle, the same one each time."""
        if handle not in self._numbers_of:
            number = next(self._numbers)
            self._numbers_of[handle] = number
            self._handles[number] = handle
        return self._numbers_of[handle]

    def _name(self, kind: HandleKind, number: int | None) -> str:
        handle = self._handles.get(number or 0)
        if handle is None or handle.kind != kind:
            raise Fault(Code.INVALID_ARGUMENT)
        return handle.name

    def device(self, handle: int | None, kind: HandleKind = "device") -> FakeGpu | MigDevice:
        """Return what an nvmlDevice_t stands for, or a handle of another kind."""
        return self.device_by_uuid(self._name(kind, handle), missing=Code.INVALID_ARGUMENT)

    def device_by_uuid(self, uuid: str, *, missing: Code = Code.NOT_FOUND) -> FakeGpu | MigDevice:
        """Return a GPU or a MIG device."""
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return self.present(gpu)
        for gpu in self.gpus:
            for entry in gpu.mig_devices():
                if entry.compute.uuid == uuid:
                    self.present(gpu)
                    return entry
        raise Fault(missing)

    def gpu(self, handle: int | None) -> FakeGpu:
        """Return the GPU that an nvmlDevice_t stands for.

        Raises:
            Fault: NOT_SUPPORTED for a MIG device, which lacks what only whole GPUs have.
        """
        found = self.device(handle)
        if isinstance(found, MigDevice):
            raise Fault(Code.NOT_SUPPORTED)
        return found

    def mig_device(self, handle: int | None, kind: HandleKind = "device") -> MigDevice:
        """Return the MIG device that an nvmlDevice_t stands for, or a handle of another kind."""
        found = self.device(handle, kind)
        if not isinstance(found, MigDevice):
            raise Fault(Code.INVALID_ARGUMENT)
        return found

    def gpu_instance(self, handle: int | None) -> tuple[FakeGpu, GpuInstance]:
        """Return what an nvmlGpuInstance_t stands for."""
        serial = self._name("gpu instance", handle)
        for gpu in self.gpus:
            for instance in gpu.state.instances:
                if instance.serial == serial:
                    return self.present(gpu), instance
        raise Fault(Code.INVALID_ARGUMENT)

    def compute_instance(self, handle: int | None) -> MigDevice:
        """Return what an nvmlComputeInstance_t stands for."""
        return self.mig_device(handle, "compute instance")

    # ---- performance monitors

    def new_gpm_sample(self) -> Handle:
        """Allocate a sample."""
        name = f"sample {next(self._gpm_numbers)}"
        self._gpm_samples[name] = GpmSample(name)
        return Handle("gpm sample", name)

    def gpm_sample(self, handle: int | None) -> GpmSample:
        """Return what an nvmlGpmSample_t stands for."""
        found = self._gpm_samples.get(self._name("gpm sample", handle))
        if found is None:
            raise Fault(Code.INVALID_ARGUMENT)
        return found

    def free_gpm_sample(self, sample: GpmSample) -> None:
        """Free a sample; its handle is invalid from now on."""
        self._gpm_samples.pop(sample.name)
        self._handles.pop(self._numbers_of.pop(Handle("gpm sample", sample.name)))

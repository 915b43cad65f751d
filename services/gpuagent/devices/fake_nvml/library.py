"""The library itself, which replaces `libnvidia-ml.so.1` in pynvml."""

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4, uuid5

import pynvml

from services.gpuagent.devices.fake_nvml.core.gpu_state import GpuState, Incident
from services.gpuagent.devices.fake_nvml.core.return_codes import describe
from services.gpuagent.devices.fake_nvml.core.sensors import ActivityMeter, NoActivity
from services.gpuagent.devices.fake_nvml.fake_gpu import Environment, FakeGpu
from services.gpuagent.devices.fake_nvml.fake_node import ROOT, FakeNode, Right
from services.gpuagent.devices.fake_nvml.process_exports import EXPORTS
from services.gpuagent.state_store import Kept, Store
from services.kit.errors import NotFound
from services.kit.hardware import gpu_types

_NAMESPACE = UUID("6b1c8f0e-5d0b-4a8e-9a53-2d6c1f6f4d0e")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _running_s() -> float:
    """Return the time since the machine started, including suspension, s."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def gpu_uuid(node: str, index: int, gpu_type: str) -> str:
    """Return the UUID of a simulated GPU: always the same one for the same place and type."""
    return f"GPU-{uuid5(_NAMESPACE, f'{node}/{index}/{gpu_type}')}"


class FakeNvml:
    """A node's GPUs behind NVML's C functions, each an attribute under its C name.

    Hardware state lives in files that one process writes. Any other may cause incidents (`lose`,
    `reset`): the owner of the hardware meets them at its next call, as an agent does whose GPU
    falls off the bus.

    Args:
        node: Node name; with index and type it gives each GPU its UUID.
        types: GPU types by index, for example ["a100-40gb", "t4"].
        state_dir: Where hardware state lives; None: it dies with this object.
        activity: Gives the activity meter of a GPU, by UUID.
        clock: Seconds that never go back while the machine runs, and all its processes share.
        new_uuid: Gives fresh UUIDs.
        rights: What the calling process may do, `UNPRIVILEGED` to `ROOT`.
        passthrough: The node is a virtual machine: a change of MIG mode waits for a reset.

    Raises:
        NotFound: No table for one of `types`.
        FailedPrecondition: A file in `state_dir` is no state of a simulated GPU.
    """

    def __init__(  # noqa: PLR0913 - a composition root's choices, all but two with defaults
        self,
        node: str,
        types: Sequence[str],
        *,
        state_dir: Path | None = None,
        activity: Callable[[str], ActivityMeter] = lambda _: NoActivity(),
        clock: Callable[[], float] = _running_s,
        new_uuid: Callable[[], UUID] = uuid4,
        rights: Right = ROOT,
        passthrough: bool = False,
    ) -> None:
        boot = _BOOT_ID.read_text().strip()

        def build(index: int, gpu_type: str) -> FakeGpu:
            uuid = gpu_uuid(node, index, gpu_type)
            environment = Environment(
                _kept(state_dir, f"{uuid}.json", GpuState),
                _kept(state_dir, f"{uuid}.mishap.json", Incident),
                activity(uuid),
                clock,
                time.time,
                boot,
                new_uuid,
                passthrough=passthrough,
            )
            return FakeGpu(uuid, index, gpu_types.load(gpu_type), environment)

        gpus = [build(index, gpu_type) for index, gpu_type in enumerate(types)]
        self._node = FakeNode(gpus, rights=rights)
        self._functions = {export.symbol: export.bind(self._node) for export in EXPORTS}
        self._functions["nvmlErrorString"] = _error_string()

    def __getattr__(self, symbol: str) -> Any:
        """Return a C function; pynvml turns AttributeError into NVMLError_FunctionNotFound."""
        try:
            return self.__dict__["_functions"][symbol]
        except KeyError:
            raise AttributeError(symbol) from None

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """UUIDs of the GPUs, by index."""
        return tuple(gpu.uuid for gpu in self._node.gpus)

    # ---- incidents

    def lose(self, gpu_uuid: str) -> None:
        """Make a GPU fall off the bus: calls about it return NVML_ERROR_GPU_IS_LOST."""
        with self._node.lock:
            self._gpu(gpu_uuid).lose()

    def reset(self, gpu_uuid: str) -> None:
        """Reset a GPU, as `nvidia-smi --gpu-reset` does or a reboot.

        Its MIG instances, locked clocks and limits are gone, and a pending MIG mode is in force.

        Raises:
            FailedPrecondition: A process uses it, and it is not lost.
        """
        with self._node.lock:
            self._gpu(gpu_uuid).reset()

    def _gpu(self, gpu_uuid: str) -> FakeGpu:
        for gpu in self._node.gpus:
            if gpu.uuid == gpu_uuid:
                return gpu
        raise NotFound(f"no simulated GPU {gpu_uuid}", field="gpu_uuid")


def install(library: Any) -> Callable[[], object]:
    """Make pynvml call `library`, as if nvmlInit had loaded it; pynvml itself stays as it is.

    Returns:
        A function that undoes it.
    """
    with pynvml.libLoadLock:
        previous, pynvml.nvmlLib = pynvml.nvmlLib, library
        # Pointers found in the former library would still be called.
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - pynvml has no public reset
    return lambda: install(previous)


def _kept(state_dir: Path | None, name: str, kind: type[Kept]) -> Store[Kept]:
    store = Store(state_dir and state_dir / name, kind)
    store.load()  # a broken file is an error here, where it can be reported; C has no words
    return store


def _error_string() -> Any:
    """Return nvmlErrorString, the one function whose result is a string."""
    texts: dict[int, Any] = {}  # C strings must outlive the call

    def describe_code(code: int) -> int:
        text = texts.setdefault(code, ctypes.create_string_buffer(describe(code).encode()))
        return ctypes.addressof(text)

    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(describe_code)

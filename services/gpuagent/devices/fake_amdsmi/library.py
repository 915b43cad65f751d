"""The library itself, which replaces `libamd_smi.so` below AMD's Python package."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock
from uuid import UUID, uuid5

from services.gpuagent.devices.fake_nvml.core.sensors import ActivityMeter, NoActivity
from services.gpuagent.state_store import Store
from services.kit.errors import FailedPrecondition
from services.kit.hardware import gpu_types
from services.kit.hardware.gpu_types import GpuTable
from services.kit.units import BYTES_PER_MIB

_NAMESPACE: Final = UUID("0f5a4d6c-52a0-4f5e-8f0a-5a3a6f3b9a11")
_SUCCESS, _INVALID, _NO_PERMISSION, _NOT_FOUND = 0, 1, 10, 31
_CLOCK_LIMIT_MAX: Final = 1
_MICRO: Final = 1e-6
_COUNTER_UJ: Final = 15.259
"""Unit of the energy counter, uJ, as AMD's driver has it."""


def _running_s() -> float:
    """Return the time since the machine started, including suspension, s."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def gpu_uuid(node: str, index: int, gpu_type: str) -> str:
    """Return the UUID of a simulated GPU, of the form that HIP has."""
    return f"GPU-{uuid5(_NAMESPACE, f'{node}/{index}/{gpu_type}').hex[:16]}"


@dataclass(frozen=True, slots=True)
class ClockLimit:
    """On-disk state of a GPU. Attributes: limit_mhz (0: the driver chooses)."""

    limit_mhz: int = 0


@dataclass(slots=True)
class _Gpu:
    uuid: str
    table: GpuTable
    activity: ActivityMeter
    store: Store[ClockLimit]
    limit: ClockLimit = field(default_factory=ClockLimit)

    def __post_init__(self) -> None:
        self.limit = self.store.load() or self.limit
        self.set_limit(self.limit.limit_mhz)

    @property
    def clock_mhz(self) -> int:
        return self.limit.limit_mhz or self.table.max_clock_mhz

    def set_limit(self, limit_mhz: int) -> None:
        self.limit = ClockLimit(limit_mhz)
        self.store.save(self.limit)
        self.activity.set_clock_ratio(self.clock_mhz / self.table.max_clock_mhz)

    def energy_j(self, now_s: float) -> float:
        used_w = self.table.context_power_w - self.table.idle_power_w
        idle_j = self.table.idle_power_w * now_s + used_w * self.activity.context_s()
        return idle_j + self.activity.energy_j()

    def power_w(self) -> float:
        table, in_use = self.table, self.activity.in_use()
        return (table.context_power_w if in_use else table.idle_power_w) + self.activity.power_w()


class FakeAmdSmi:
    """A node's GPUs behind AMD SMI's C functions, each a method under its C name.

    Args:
        node: Node name; with index and type it gives each GPU its UUID.
        types: GPU types by index.
        state_dir: Where hardware state lives; None: it dies with this object.
        activity: Gives the activity meter of a GPU, by UUID.
        clock: Seconds that never go back while the machine runs.
        root: Whether the calling process may change GPUs.

    Raises:
        NotFound: No table for one of `types`.
    """

    def __init__(  # noqa: PLR0913 - a composition root's choices, all but two with defaults
        self,
        node: str,
        types: Sequence[str],
        *,
        state_dir: Path | None = None,
        activity: Callable[[str], ActivityMeter] = lambda _: NoActivity(),
        clock: Callable[[], float] = _running_s,
        root: bool = True,
    ) -> None:
        self._clock, self._root = clock, root
        self._gpus = []
        for index, name in enumerate(types):
            uuid = gpu_uuid(node, index, name)
            store = Store(state_dir and state_dir / f"{uuid}.json", ClockLimit)
            self._gpus.append(_Gpu(uuid, gpu_types.load(name), activity(uuid), store))

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """UUIDs of the GPUs, by index."""
        return tuple(gpu.uuid for gpu in self._gpus)

    def _of(self, handle: Any) -> _Gpu:
        return self._gpus[_value(handle) - 1]

    # ---- AMD SMI's functions: each returns a status, and writes to what its arguments point to

    def amdsmi_init(self, _flags: Any) -> int:
        """Start."""
        return _SUCCESS

    def amdsmi_shut_down(self) -> int:
        """Stop."""
        return _SUCCESS

    def amdsmi_get_socket_handles(self, count: Any, handles: Any) -> int:
        """Give one socket for each GPU."""
        return self._listed(count, handles, range(1, len(self._gpus) + 1))

    def amdsmi_get_processor_handles(self, socket: Any, count: Any, handles: Any) -> int:
        """Give the GPU of a socket."""
        return self._listed(count, handles, (_value(socket),))

    @staticmethod
    def _listed(count: Any, handles: Any, numbers: Sequence[int]) -> int:
        if handles:
            for at, number in enumerate(numbers):
                handles[at] = number
        count._obj.value = len(numbers)  # noqa: SLF001 - what byref points to
        return _SUCCESS

    def amdsmi_get_gpu_enumeration_info(self, handle: Any, info: Any) -> int:
        """Give a GPU's UUID and number in HIP."""
        gpu = self._of(handle)
        found = info._obj  # noqa: SLF001
        found.hip_id, found.hip_uuid = self._gpus.index(gpu), gpu.uuid.encode()
        return _SUCCESS

    def amdsmi_get_gpu_asic_info(self, handle: Any, info: Any) -> int:
        """Give a GPU's product name, compute units and version."""
        table, found = self._of(handle).table, info._obj  # noqa: SLF001
        major, minor = table.compute_capability
        found.market_name, found.vendor_name = table.product_name.encode(), b"AMD"
        found.num_of_compute_units = table.sm_count
        found.target_graphics_version = (major << 8) | minor
        return _SUCCESS

    def amdsmi_get_gpu_vram_info(self, handle: Any, info: Any) -> int:
        """Give a GPU's memory, MiB."""
        info._obj.vram_size = self._of(handle).table.memory_bytes // BYTES_PER_MIB  # noqa: SLF001
        return _SUCCESS

    def amdsmi_get_clock_info(self, handle: Any, _kind: Any, info: Any) -> int:
        """Give a GPU's clock and its range, MHz."""
        gpu, found = self._of(handle), info._obj  # noqa: SLF001
        found.clk, found.max_clk = gpu.clock_mhz, gpu.table.max_clock_mhz
        found.min_clk = gpu.table.clocks_mhz[-1]
        return _SUCCESS

    def amdsmi_get_power_cap_info(self, handle: Any, _sensor: Any, info: Any) -> int:
        """Give a GPU's power limits, uW."""
        table, found = self._of(handle).table, info._obj  # noqa: SLF001
        found.power_cap = found.default_power_cap = round(table.max_power_w / _MICRO)
        found.min_power_cap = round(table.min_power_limit_w / _MICRO)
        found.max_power_cap = found.default_power_cap
        return _SUCCESS

    def amdsmi_get_power_info(self, handle: Any, info: Any) -> int:
        """Give a GPU's power, W; an MI300 has no average."""
        info._obj.current_socket_power = round(self._of(handle).power_w())  # noqa: SLF001
        info._obj.average_socket_power = 0xFFFF  # noqa: SLF001
        return _SUCCESS

    def amdsmi_get_energy_count(self, handle: Any, count: Any, unit: Any, at: Any) -> int:
        """Give a GPU's energy counter, its unit in uJ, and the time in ns."""
        energy_j, now_s = self._of(handle).energy_j(self._clock()), self._clock()
        unit._obj.value = _COUNTER_UJ  # noqa: SLF001
        count._obj.value = int(energy_j / _MICRO / _COUNTER_UJ)  # noqa: SLF001
        at._obj.value = int(now_s * 1e9)  # noqa: SLF001
        return _SUCCESS

    def amdsmi_set_gpu_clk_limit(self, handle: Any, _kind: Any, which: Any, value: Any) -> int:
        """Limit a GPU's clock, MHz; it needs root, as on hardware."""
        gpu, clock_mhz = self._of(handle), _value(value)
        if not self._root:
            return _NO_PERMISSION
        if _value(which) != _CLOCK_LIMIT_MAX or not (
            gpu.table.clocks_mhz[-1] <= clock_mhz <= gpu.table.max_clock_mhz
        ):
            return _INVALID
        gpu.set_limit(clock_mhz)
        return _SUCCESS

    def amdsmi_set_gpu_perf_level(self, handle: Any, _level: Any) -> int:
        """Lift the limit of a GPU's clock."""
        if not self._root:
            return _NO_PERMISSION
        self._of(handle).set_limit(0)
        return _SUCCESS


@dataclass(slots=True)
class _Function:
    """A C function that the present library has; AMD's package sets the types on it."""

    name: str
    restype: Any = None
    argtypes: Any = None

    def __call__(self, *args: Any) -> int:
        function = getattr(_loaded.library, self.name, None)
        return _NOT_FOUND if function is None else int(function(*args))


class _Loaded:
    """The stand-in for the shared object; functions are bound once, libraries come and go."""

    library: FakeAmdSmi | None = None

    def __getattr__(self, name: str) -> _Function:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Function(name)


_loaded: Final = _Loaded()


def install(library: FakeAmdSmi | None) -> Callable[[], object]:
    """Make AMD's package call `library`, as if it had loaded it.

    Returns:
        A function that undoes it.

    Raises:
        FailedPrecondition: AMD's package is not installed, or has loaded AMD's own library.
    """
    if "amdsmi" not in sys.modules:
        with mock.patch.object(ctypes, "CDLL", return_value=_loaded):
            try:
                import amdsmi  # noqa: F401, PLC0415 - it loads the library
            except ModuleNotFoundError as error:
                text = "simulated AMD GPUs need the extra `amd`: pip install 'cinquefoil[amd]'"
                raise FailedPrecondition(text, reason="NO_AMDSMI") from error
    wrapper = sys.modules["amdsmi.amdsmi_wrapper"]
    if wrapper._libraries["libamd_smi.so"] is not _loaded:  # noqa: SLF001 - it has no other name
        raise FailedPrecondition("AMD's own library is loaded in this process")
    previous, _loaded.library = _loaded.library, library
    return lambda: install(previous)


def _value(argument: Any) -> int:
    """Return a number that was passed as such, or as ctypes' value."""
    return int(getattr(argument, "value", argument))

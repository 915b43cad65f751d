"""The cores of this machine as one device that is cut into slices: a `Devices` beside NVML's.

The kernel knows no slices. What is on disk is what exists; a worker binds itself, and what it
starts, to its slice's cores. MIG and clocks there are none.
"""

import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self
from uuid import NAMESPACE_OID, uuid5

import psutil

from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.core import cpu_geometry
from services.gpuagent.core.device_port import IN_USE, MeterReading, Permissions
from services.gpuagent.core.gpu_info import GpuInfo, GpuReading, SliceReading
from services.gpuagent.devices.cpu import power, speed
from services.gpuagent.devices.rapl import ROOT, Rapl
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.kit import cgroup
from services.kit.cgroup import CgroupLimits
from services.kit.config import Cpu
from services.kit.errors import FailedPrecondition, InvalidArgument, NotFound
from services.kit.hardware.gpu_types import GpuModel
from services.kit.mig import Layout
from services.kit.state_file import read_parsed, write_json
from services.kit.telemetry import logs

VERSION: Final = 1

_log = logs.get("cores")


@dataclass(slots=True, kw_only=True)
class CpuCores:
    """One device: some cores of this machine.

    Attributes:
        uuid: Its identity.
        cores: Their numbers.
        model: What they are, but for their speed.
        path: Where slices are written down, and the speed that was measured.
        gauge: Reads the energy since some fixed moment, which never falls; or raises Unavailable.
        busy: Returns whether a process holds a slice, by the slice's UUID.
        permissions: Whether slices may be changed.
        measure: Measures a core's speed, 1e9 multiply-accumulates/s; blocks for less than 1 s.
        share: Part of its cores' time that the process may use, 0 < share <= 1: with a quota of
            1.5 cores, each of 2 cores counts as one of three quarters of its speed.
    """

    uuid: str
    cores: Sequence[int]
    model: GpuModel
    path: Path
    gauge: Callable[[], MeterReading]
    busy: Callable[[str], bool]
    permissions: Permissions
    measure: Callable[[], float] = speed.gmacs_per_s
    share: float = 1.0
    _gmacs_per_s: float = field(default=0.0, init=False)

    def __enter__(self) -> Self:
        known = read_parsed(self.path, lambda data: float(data["gmacs_per_s"]), version=VERSION)
        # Once: a figure that varies from start to start would be another type each time.
        self._gmacs_per_s = known or float(f"{self.measure():.2g}")
        if known is None:
            self._write(())
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def reopen(self) -> None:
        """Nothing is open."""

    def list(self) -> tuple[GpuInfo, ...]:
        """Return the device."""
        model = replace(self.model, core_gmacs_per_s=self._gmacs_per_s * self.share)
        slices = tuple((each, self._slice_uuid(each)) for each in self._slices())
        return (
            GpuInfo(
                uuid=self.uuid,
                index=0,
                model=model,
                mig_enabled=True,
                slices=slices,
                clock_mhz=_clock_mhz("current"),
                mig_pending=True,
                cores=tuple(self.cores),
            ),
        )

    def get(self, gpu_uuid: str) -> GpuInfo:
        """Return the device.

        Raises:
            NotFound: It is another one.
        """
        self._find(gpu_uuid)
        return self.list()[0]

    def keep(self, gpu_uuids: Collection[str]) -> None:
        """There is one device, and it does not come and go."""

    def refused(self) -> Mapping[str, Mapping[str, str]]:
        """Return nothing: there is no driver."""
        return {}

    def readings(self) -> tuple[GpuReading, ...]:
        """Return the device and its slices; what memory they use is not known."""
        (device,) = self.list()
        kinds = device.model.geometry
        slices = tuple(
            SliceReading(each, uuid, None, kinds.kind(each.profile).memory_bytes, None)
            for each, uuid in device.slices
        )
        return (GpuReading(device, slices),)

    def present(self) -> frozenset[str]:
        """Return the device: where this runs, it is."""
        return frozenset((self.uuid,))

    def create_slice(self, gpu_uuid: str, placement: Placement) -> str:
        """Make sure that a slice exists; return its UUID.

        Raises:
            InvalidArgument: There is no such slice kind, or not there.
            FailedPrecondition: Another slice has some of its cores.
        """
        self._check(gpu_uuid, placement)
        slices = self._slices()
        if placement not in slices:
            wanted = tuple(sorted((*slices, placement), key=lambda each: each.start))
            problem = self.model.geometry.problem(wanted)
            if problem:
                raise FailedPrecondition(f"{gpu_uuid}: {problem}", reason="CORES_TAKEN")
            self._write(wanted)
        return self._slice_uuid(placement)

    def destroy_slice(self, gpu_uuid: str, placement: Placement) -> None:
        """Make sure that a slice does not exist.

        Raises:
            InvalidArgument: There is no such slice kind, or not there.
            FailedPrecondition: A process uses it.
        """
        self._check(gpu_uuid, placement)
        slices = self._slices()
        if placement in slices:
            if self.busy(self._slice_uuid(placement)):
                raise FailedPrecondition(
                    f"destroy {placement} on {gpu_uuid}: a process still uses it", reason=IN_USE
                )
            self._write(tuple(each for each in slices if each != placement))

    def set_mig_mode(self, gpu_uuid: str, *, enabled: bool) -> None:
        """Cores can always be cut.

        Raises:
            FailedPrecondition: `enabled` is False.
        """
        self._find(gpu_uuid)
        if not enabled:
            raise FailedPrecondition(f"{gpu_uuid} has no MIG mode", reason="NVML_NOT_SUPPORTED")

    def meter(self, gpu_uuid: str) -> MeterReading:
        """Return the machine's energy, of all that runs there.

        Raises:
            Unavailable: It cannot be read now.
        """
        self._find(gpu_uuid)
        return self.gauge()

    def lock_clock(self, gpu_uuid: str, clock_mhz: int) -> None:
        """Clocks are the kernel's.

        Raises:
            FailedPrecondition: Always.
        """
        self._find(gpu_uuid)
        raise FailedPrecondition(
            f"{gpu_uuid} cannot be held at {clock_mhz} MHz: its clock is the kernel's",
            reason="NVML_NOT_SUPPORTED",
        )

    def reset_clock(self, gpu_uuid: str) -> None:
        """Nothing is held."""
        self._find(gpu_uuid)

    # ---- helpers

    def _find(self, gpu_uuid: str) -> None:
        if gpu_uuid != self.uuid:
            raise NotFound(f"{gpu_uuid} is not here: this node has {self.uuid}", field="gpu_uuid")

    def _check(self, gpu_uuid: str, placement: Placement) -> None:
        self.permissions.require()
        self._find(gpu_uuid)
        problem = self.model.geometry.problem([placement])
        if problem:
            raise InvalidArgument(f"{gpu_uuid}: {problem}", field="placement")

    def _slice_uuid(self, placement: Placement) -> str:
        return f"{self.uuid}/{placement}"

    def _slices(self) -> Layout:
        def parsed(data: dict[str, Any]) -> Layout:
            return tuple(Placement(*each) for each in data["slices"])

        return read_parsed(self.path, parsed, version=VERSION) or ()

    def _write(self, slices: Layout) -> None:
        data = {
            "version": VERSION,
            "gmacs_per_s": self._gmacs_per_s,
            "slices": [(each.profile, each.start) for each in slices],
        }
        write_json(self.path, data)


def _clock_mhz(which: str) -> int:
    """Return a clock of the machine's cores, "current" or "max", MHz; 0: it does not say."""
    found = psutil.cpu_freq()
    return round(float(getattr(found, which))) if found else 0


_CPUINFO: Final = Path("/proc/cpuinfo")


def cores_of(  # noqa: PLR0913 - what a device is made of
    name: str,
    settings: Cpu,
    folder: Path,
    counters: Callable[[str], SharedCounters],
    permissions: Permissions,
    *,
    rapl: Path = ROOT,
    allowed: CgroupLimits | None = None,
) -> CpuCores:
    """Return the device; its speed is not measured before it is entered.

    Args:
        name: The node's.
        settings: Its cores.
        folder: Of the device's file.
        counters: Gives a device's ledger, by UUID.
        permissions: Whether slices may be changed.
        rapl: Folder of the kernel's power zones.
        allowed: Limits of this process's control groups; None: as they are.

    Raises:
        FailedPrecondition: The agent may not run on these cores.
    """
    cores, allowed = chosen(settings), allowed or cgroup.limits()
    share = min(allowed.cores / len(cores), 1.0)
    if share < 1.0:
        _log.warning(
            "the quota of CPU time is less than the node's cores: each counts as a slower one",
            quota_cores=allowed.cores,
            cores=len(cores),
        )
    numbers = ",".join(map(str, cores))
    uuid = f"CPU-{uuid5(NAMESPACE_OID, f'cinquefoil {name} {numbers}')}"
    idle_w = power.IDLE_W * len(cores) if settings.idle_w is None else settings.idle_w
    return CpuCores(
        uuid=uuid,
        cores=cores,
        model=_model(len(cores), idle_w, settings.core_w, allowed),
        path=folder / f"{uuid}.json",
        gauge=_gauge(cores, idle_w, settings.core_w, rapl),
        busy=lambda slice_uuid: counters(uuid).busy(slice_uuid),
        permissions=permissions,
        share=share,
    )


def _gauge(
    cores: Sequence[int], idle_w: float, core_w: float, rapl: Path
) -> Callable[[], MeterReading]:
    """Return what reads energy: of all that runs on the machine, or as modelled of the cores."""
    found = Rapl.find(rapl)
    if found is not None:
        return lambda: MeterReading(found.energy_j(), None, "rapl", power.busy_s())
    model = power.PowerModel(cores, idle_w, core_w)
    return lambda: MeterReading(model.energy_j(), None, "model", power.busy_s(cores))


def chosen(settings: Cpu) -> tuple[int, ...]:
    """Return the cores that a node offers, by number.

    Raises:
        FailedPrecondition: The agent may not run on some of them, or on too few.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if isinstance(settings.cores, int):
        if settings.cores > len(allowed):
            raise FailedPrecondition(
                f"cpu.cores: {settings.cores} are configured, and the agent may run on "
                f"{len(allowed)}",
                reason="TOO_FEW_CORES",
            )
        return tuple(allowed[: settings.cores])
    missing = sorted(set(settings.cores) - set(allowed))
    if missing:
        raise FailedPrecondition(
            f"cpu.cores: the agent may not run on {missing}; it may on {allowed}",
            reason="TOO_FEW_CORES",
        )
    return settings.cores


def _model(cores: int, idle_w: float, core_w: float, allowed: CgroupLimits) -> GpuModel:
    memory_bytes = int(min(psutil.virtual_memory().total, allowed.memory_bytes))
    return GpuModel(
        name=cpu_geometry.name(cores),
        product_name=_product_name(),
        geometry=cpu_geometry.geometry(cores, memory_bytes),
        sm_count=cores,
        memory_bytes=memory_bytes,
        idle_power_w=idle_w,
        context_power_w=idle_w,
        max_power_w=idle_w + core_w * cores,
        clocks_mhz=(_clock_mhz("max"),),
    )


def _product_name() -> str:
    """Return what the processor calls itself, for example "AMD EPYC 9654"."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())

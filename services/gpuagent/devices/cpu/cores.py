"""The cores of this machine as one device that is cut into slices: a `Devices` beside NVML's.

The kernel knows no slices. What is on disk is what exists; a worker binds itself, and what it
starts, to its slice's cores. MIG and clocks there are none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import psutil

from services.gpuagent.core.device_port import IN_USE, MeterReading
from services.gpuagent.core.gpu_types import GpuInfo, GpuModel, GpuReading, SliceReading
from services.gpuagent.core.permissions import Permissions
from services.gpuagent.devices.cpu import speed
from services.kit.errors import FailedPrecondition, InvalidArgument, NotFound
from services.kit.mig import Layout, Placement
from services.kit.state_file import read_parsed, write_json

VERSION: Final = 1


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
    """

    uuid: str
    cores: Sequence[int]
    model: GpuModel
    path: Path
    gauge: Callable[[], MeterReading]
    busy: Callable[[str], bool]
    permissions: Permissions
    measure: Callable[[], float] = speed.gmacs_per_s
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
        model = replace(self.model, core_gmacs_per_s=self._gmacs_per_s)
        slices = tuple((each, self._slice_uuid(each)) for each in self._slices())
        return (
            GpuInfo(
                uuid=self.uuid,
                index=0,
                model=model,
                mig_enabled=True,
                slices=slices,
                clock_mhz=round(_clock("current")),
                mig_pending=True,
                cores=tuple(self.cores),
            ),
        )

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
        return read_parsed(self.path, _slices, version=VERSION) or ()

    def _write(self, slices: Layout) -> None:
        data = {
            "version": VERSION,
            "gmacs_per_s": self._gmacs_per_s,
            "slices": [(each.profile, each.start) for each in slices],
        }
        write_json(self.path, data)


def _slices(data: dict[str, Any]) -> Layout:
    return tuple(Placement(*each) for each in data["slices"])


def max_clock_mhz() -> int:
    """Return the highest clock of the machine's cores, MHz; 0: it does not say."""
    return round(_clock("max"))


def _clock(which: str) -> float:
    found = psutil.cpu_freq()
    return float(getattr(found, which)) if found else 0.0

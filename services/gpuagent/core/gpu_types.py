"""Facts about GPU types, one TOML file each in `gpus/`.

The tables describe the hardware that is simulated, and give of real hardware what NVML does not:
its idle power and the name we give its type. Everything else about real hardware is read from NVML.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from cinquefoil.gpuagent.v1.records import Placement, SliceProfile
from services.kit.errors import InvalidArgument, NotFound
from services.kit.mig import WHOLE, Geometry
from services.kit.units import BYTES_PER_MIB

_TABLES = resources.files("services.gpuagent") / "gpus"
_GA100 = (8, 0)

OFFERED = re.compile(r"\d+g\.\d+gb")
"""Slice kinds that agents report: "1g.5gb+me" (media engines) or "+gfx" hold what inference does
not need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """A GPU type, from a table or from a driver.

    Attributes:
        name: Table name, for example "a100-40gb".
        product_name: What NVML calls it, for example "NVIDIA A100-SXM4-40GB".
        geometry: What it can be cut into.
        sm_count: Streaming multiprocessors of the whole GPU.
        memory_bytes: Memory of the whole GPU.
        idle_power_w: Power while nothing is computed, W.
        max_power_w: Default power limit, W.
        clocks_mhz: SM clocks it can be locked to, MHz, highest first.
        core_gmacs_per_s: CPU cores only: multiply-accumulates of one core, measured, 1e9/s.
    """

    name: str
    product_name: str
    geometry: Geometry
    sm_count: int
    memory_bytes: int
    idle_power_w: float
    max_power_w: float
    clocks_mhz: tuple[int, ...]
    core_gmacs_per_s: float = 0.0

    @property
    def mig_capable(self) -> bool:
        """Whether it can be cut at all."""
        return all(kind.name != WHOLE for kind in self.geometry.kinds)

    @property
    def max_clock_mhz(self) -> int:
        """Highest SM clock, MHz."""
        return self.clocks_mhz[0]

    def check_clock(self, clock_mhz: int) -> None:
        """Accept a clock that it can be locked to, or that lies between two of those.

        Raises:
            InvalidArgument: Outside the supported range, which drivers would take for its end.
        """
        low, high = self.clocks_mhz[-1], self.clocks_mhz[0]
        if not low <= clock_mhz <= high:
            raise InvalidArgument(
                f"clock_mhz must be {low}..{high}, got {clock_mhz}", field="clock_mhz"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What the whole GPU reaches at its highest clock, sparsity apart.

    Attributes:
        fp32_tflops: Without tensor cores, 1e12 operations/s; a multiply-accumulate is two.
        tf32_tflops: Matrix products of FP32; the same where there are no such tensor cores.
        fp16_tflops: Matrix products of FP16 or BF16.
        int8_tops: Matrix products of INT8.
        memory_gb_per_s: Memory bandwidth, 1e9 bytes/s.
    """

    fp32_tflops: float
    tf32_tflops: float
    fp16_tflops: float
    int8_tops: float
    memory_gb_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTable(GpuModel):
    """A GPU type with what only a driver needs to know of it.

    Attributes:
        other_names: Product names of other boards of this type.
        profile_enums: NVML's enum (NVML_GPU_INSTANCE_PROFILE_*) by slice kind; empty without MIG.
        compute_capability: CUDA compute capability, (major, minor).
        cores_per_sm: CUDA cores per streaming multiprocessor.
        min_power_limit_w: Lowest power limit, W.
        memory_clock_mhz: Memory clock, MHz.
        peak: The ends of its roofline.
        energy_counter: The driver counts energy (Volta or newer).
        clock_lock: The driver locks clocks (Volta or newer).
        assumed: Dotted keys of facts without a primary source.
    """

    other_names: tuple[str, ...]
    profile_enums: Mapping[str, int]
    compute_capability: tuple[int, int]
    cores_per_sm: int
    min_power_limit_w: float
    memory_clock_mhz: int
    peak: Peaks
    energy_counter: bool
    clock_lock: bool
    assumed: tuple[str, ...]

    @property
    def offered(self) -> Geometry:
        """The geometry as an agent reports it: kinds worth offering, in the driver's order."""
        if not self.mig_capable:
            return self.geometry
        kinds = [kind for kind in self.geometry.kinds if OFFERED.fullmatch(kind.name)]
        kinds.sort(key=lambda kind: self.profile_enums[kind.name])
        return Geometry(self.geometry.memory_slices, tuple(kinds))

    @property
    def averages_power(self) -> bool:
        """Whether the driver reports power as the mean of a second.

        nvml.h: "On Ampere (except GA100) or newer GPUs, the API returns power averaged over 1 sec
        interval. On GA100 and older architectures, instantaneous power is returned."
        """
        return self.compute_capability > _GA100


@cache
def names() -> tuple[str, ...]:
    """Return the GPU types that have a table, sorted."""
    files = (entry.name for entry in _TABLES.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


@cache
def load(name: str) -> GpuTable:
    """Return the table called `name`.

    Raises:
        NotFound: There is none; the message lists those there are.
    """
    if name not in names():
        raise NotFound(
            f"no GPU type {name!r}; there are {', '.join(names())}", reason="UNKNOWN_GPU_TYPE"
        )
    return _parse(tomllib.loads((_TABLES / f"{name}.toml").read_text(encoding="utf-8")))


def by_product_name(product_name: str) -> GpuTable | None:
    """Return the table of a board, or None where its type has no table.

    Args:
        product_name: As NVML prints it, for example "NVIDIA A100-SXM4-40GB".
    """
    for table in map(load, names()):
        if product_name == table.product_name or product_name in table.other_names:
            return table
    return None


def whole_geometry(*, compute_slices: int, sm_count: int, memory_bytes: int) -> Geometry:
    """Return the geometry of a GPU that is not cut; its compute slices are its GPCs."""
    kind = SliceProfile(
        name=WHOLE,
        compute_slices=compute_slices,
        memory_slices=1,
        starts=(0,),
        max_count=1,
        sm_count=sm_count,
        memory_bytes=memory_bytes,
    )
    return Geometry(memory_slices=1, kinds=(kind,))


def _parse(data: Mapping[str, Any]) -> GpuTable:
    power, profiles = data["power"], data["profiles"]
    major, minor = data["compute_capability"]
    return GpuTable(
        name=data["name"],
        product_name=data["product_name"],
        geometry=Geometry(data["memory_slices"], tuple(map(_kind, profiles))),
        sm_count=data["sm_count"],
        memory_bytes=data["memory_mib"] * BYTES_PER_MIB,
        idle_power_w=power["idle_w"],
        max_power_w=power["limit_w"],
        clocks_mhz=_clocks(data["clocks"]),
        other_names=tuple(data["other_names"]),
        profile_enums=MappingProxyType({p["name"]: p["enum"] for p in profiles if "enum" in p}),
        compute_capability=(major, minor),
        cores_per_sm=data["cores_per_sm"],
        min_power_limit_w=power["min_limit_w"],
        memory_clock_mhz=data["clocks"]["memory_mhz"],
        peak=Peaks(**data["peak"]),
        energy_counter=data["energy_counter"],
        clock_lock=data["clock_lock"],
        assumed=tuple(data["assumed"]),
    )


def _kind(profile: Mapping[str, Any]) -> SliceProfile:
    return SliceProfile(
        name=profile["name"],
        compute_slices=profile["compute_slices"],
        memory_slices=profile["memory_slices"],
        starts=tuple(profile["starts"]),
        max_count=profile["max_count"],
        sm_count=profile["sm_count"],
        memory_bytes=profile["memory_mib"] * BYTES_PER_MIB,
        gpu_instance_profile_id=profile.get("id", 0),
    )


def _clocks(data: Mapping[str, float]) -> tuple[int, ...]:
    """Return the clocks from the highest down; drivers round half steps down."""
    highest_mhz, step_mhz = data["max_mhz"], data["step_mhz"]
    steps = int((highest_mhz - data["min_mhz"]) // step_mhz)
    return tuple(math.floor(highest_mhz - i * step_mhz) for i in range(steps + 1))


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU as read back from the hardware.

    Attributes:
        uuid: Its identity.
        index: Its index now; no identity.
        model: What it is; its geometry is what the GPU can be cut into in its present MIG mode.
        mig_enabled: MIG mode is in force.
        mig_pending: MIG mode that was requested; it comes with the next reset.
        slices: Slices that exist, with their UUIDs, in order of start.
        clock_mhz: SM clock now, MHz.
        leftovers: GPU instances without compute instance, as a crash leaves them.
        divided: GPU instances that another program divided; never touched.
        cores: Numbers of the CPU cores that its memory slices stand for; (): it is a GPU.
    """

    uuid: str
    index: int
    model: GpuModel
    mig_enabled: bool
    slices: tuple[tuple[Placement, str], ...]
    clock_mhz: int
    mig_pending: bool = False
    leftovers: tuple[Placement, ...] = ()
    divided: tuple[Placement, ...] = ()
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SliceReading:
    """A slice as read now.

    Attributes:
        placement: Where it lies.
        uuid: Its MIG device's, or the GPU's where it is the whole of that.
        instance_id: Number of its GPU instance; None: it is none.
        memory_bytes: Its memory.
        used_bytes: Memory in use; None: not known.
    """

    placement: Placement
    uuid: str
    instance_id: int | None
    memory_bytes: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU and its slices as read now. Attributes: gpu, slices."""

    gpu: GpuInfo
    slices: tuple[SliceReading, ...]

"""Facts about GPU types, one TOML file each in `types/`: the only owner of such figures.

The tables describe the hardware that is simulated, and give of real hardware what NVML does not:
idle power, peaks, and how far networks are from them. docs/gpu-types.md says how to add one.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from cinquefoil.gpuagent.v1.records import Performance, SliceProfile
from services.kit.errors import InvalidArgument, NotFound
from services.kit.hardware.clock_curve import ClockCurve
from services.kit.mig import WHOLE, Geometry
from services.kit.units import BYTES_PER_MIB

_TABLES = resources.files("services.kit.hardware") / "types"
_GA100 = (8, 0)

REFERENCE = "a100-40gb"
"""The type whose SM has speed 1 in the analytic profile."""

Maker = Literal["nvidia", "amd"]

CONSUMER = "p4"
"""The type whose clock curve unknown GPUs get: it promises least."""

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
        idle_power_w: Power with no CUDA context open, W.
        context_power_w: Power with one open and nothing computed, as where segments wait, W.
        max_power_w: Default power limit, W.
        clocks_mhz: SM clocks it can be locked to, MHz, highest first.
        performance: How fast it is; None: it is CPU cores.
        core_gmacs_per_s: CPU cores only: multiply-accumulates of one core, measured, 1e9/s.
        maker: Whose driver it has.
    """

    name: str
    product_name: str
    geometry: Geometry
    sm_count: int
    memory_bytes: int
    idle_power_w: float
    context_power_w: float
    max_power_w: float
    clocks_mhz: tuple[int, ...]
    performance: Performance | None = None
    core_gmacs_per_s: float = 0.0
    maker: Maker = "nvidia"

    @property
    def mig_capable(self) -> bool:
        """True where it can be cut at all."""
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
    """Peaks of the whole GPU at its highest clock, without sparsity.

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
class AnalyticFactors:
    """Inception-V3 on a GPU type (`services.kit.profiles.core.analytic`).

    Attributes:
        speed: Speed of an SM; an A100's is 1. Where it was not measured: by the FP16 peak.
        launch_ms: Time to launch one batch's kernels, ms.
        host_ms: Time per batch in which the SMs do nothing for it, ms.
        kernel_ms: SM time per batch that neither batch nor slice size changes, ms.
        kernel_activity: Activity of the SMs in that time, 0..1.
        item_activity: Activity while items are computed; above 1: the power limit binds.
    """

    speed: float
    launch_ms: float
    host_ms: float
    kernel_ms: float
    kernel_activity: float
    item_activity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFactors:
    """Distance of language models from a GPU type's peaks (`services.kit.profiles.core.language`).

    Attributes:
        fixed_s: Of every step with 70 billion parameters that a token takes, s.
        parallel_s: The same, for each GPU beyond the first that the model is divided among.
        read, kv: Time to read weights, and keys and values, over that at the whole bandwidth.
        decode, prefill: Time of the arithmetic of answers and of prompts, over that at the peak.
        exchange_s: Of each token of prompts with 70 billion parameters, for each GPU beyond the
            first that the model is divided among: their sums (all-reduce) take time, s.
        base, reading, computing: Power over the limit: of steps; with the whole bandwidth in use;
            with the whole FP16 peak in use.
    """

    fixed_s: float
    parallel_s: float
    read: float
    decode: float
    kv: float
    prefill: float
    exchange_s: float
    base: float
    reading: float
    computing: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTable(GpuModel):
    """A GPU type with all that is known of it.

    Attributes:
        performance: Of its own peaks and factors.
        other_names: Product names of other boards of this type.
        chip_names: First words of the product names of boards with this chip, "A100" and "A800".
        profile_enums: NVML's enum (NVML_GPU_INSTANCE_PROFILE_*) by slice kind; empty without MIG.
        compute_capability: CUDA compute capability, (major, minor).
        cores_per_sm: CUDA cores per streaming multiprocessor.
        min_power_limit_w: Lowest power limit, W.
        memory_clock_mhz: Memory clock, MHz.
        peak: The ends of its roofline.
        energy_counter: The driver counts energy (Volta or newer).
        clock_lock: The driver locks clocks (Volta or newer).
        nvlink: Its boards come on a module that joins those of a node by NVLink.
        clock_curve: How latency and power follow its clock.
        analytic: Factors of the analytic profile.
        tokens: Factors of language models.
        experts: The same of models of experts, whose kernels are further from the peaks.
        embodied_kgco2e: Carbon of making one with its board and heat sink, cradle to gate; None:
            not published.
        assumed: Dotted keys of facts without a primary source.
    """

    performance: Performance
    other_names: tuple[str, ...]
    chip_names: tuple[str, ...]
    profile_enums: Mapping[str, int]
    compute_capability: tuple[int, int]
    cores_per_sm: int
    min_power_limit_w: float
    memory_clock_mhz: int
    peak: Peaks
    energy_counter: bool
    clock_lock: bool
    nvlink: bool
    clock_curve: ClockCurve
    analytic: AnalyticFactors
    tokens: TokenFactors
    experts: TokenFactors
    embodied_kgco2e: float | None
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
    def uncut(self) -> Geometry:
        """The geometry with MIG mode off."""
        return whole_geometry(
            compute_slices=max(kind.compute_slices for kind in self.geometry.kinds),
            sm_count=self.sm_count,
            memory_bytes=self.memory_bytes,
        )

    @property
    def fp16_tflops_per_sm(self) -> float:
        """Peak of one SM, 1e12 operations/s."""
        return self.peak.fp16_tflops / self.sm_count

    @property
    def averages_power(self) -> bool:
        """True where the driver reports power as the mean of a second.

        nvml.h: "On Ampere (except GA100) or newer GPUs, the API returns power averaged over 1 sec
        interval. On GA100 and older architectures, instantaneous power is returned."
        """
        return self.compute_capability > _GA100


@cache
def names(maker: Maker | None = None) -> tuple[str, ...]:
    """Return the GPU types that have a table, sorted; of one maker, or of all."""
    files = (entry.name for entry in _TABLES.iterdir())
    found = sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))
    return tuple(name for name in found if maker is None or _maker(_read(name)) == maker)


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
    return _parse(_read(name))


@cache
def _read(name: str) -> Mapping[str, Any]:
    return tomllib.loads((_TABLES / f"{name}.toml").read_text(encoding="utf-8"))


def curve_of(performance: Performance | None) -> ClockCurve:
    """Return how a GPU follows its clock; None: nothing is known of it."""
    return load(performance.like if performance else CONSUMER).clock_curve


def published_kgco2e(name: str) -> float:
    """Return the embodied carbon of a GPU type, kgCO2e; 0: none is published."""
    return load(name).embodied_kgco2e or 0.0 if name in names() else 0.0


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
    power, profiles, peak = data["power"], data["profiles"], Peaks(**data["peak"])
    major, minor = data["compute_capability"]
    analytic = _section(data, "analytic") | {"speed": _sm_speed(data)}
    return GpuTable(
        name=data["name"],
        product_name=data["product_name"],
        maker=_maker(data),
        geometry=Geometry(data["memory_slices"], tuple(map(_kind, profiles))),
        sm_count=data["sm_count"],
        memory_bytes=data["memory_mib"] * BYTES_PER_MIB,
        idle_power_w=power["idle_w"],
        context_power_w=power["context_w"],
        max_power_w=power["limit_w"],
        clocks_mhz=_clocks(data["clocks"]),
        performance=Performance(
            fp16_tflops=peak.fp16_tflops, memory_gb_per_s=peak.memory_gb_per_s, like=data["name"]
        ),
        other_names=tuple(data["other_names"]),
        chip_names=tuple(data["chip_names"]),
        profile_enums=MappingProxyType({p["name"]: p["enum"] for p in profiles if "enum" in p}),
        compute_capability=(major, minor),
        cores_per_sm=data["cores_per_sm"],
        min_power_limit_w=power["min_limit_w"],
        memory_clock_mhz=data["clocks"]["memory_mhz"],
        peak=peak,
        energy_counter=data["energy_counter"],
        clock_lock=data["clock_lock"],
        nvlink=data.get("nvlink", False),
        clock_curve=ClockCurve(**_section(data, "clock_curve")),
        analytic=AnalyticFactors(**analytic),
        tokens=TokenFactors(**_section(data, "tokens")),
        experts=TokenFactors(**_section(data, "experts")),
        embodied_kgco2e=data.get("embodied", {}).get("kgco2e"),
        assumed=tuple(data["assumed"]),
    )


def _maker(data: Mapping[str, Any]) -> Maker:
    maker: Maker = data.get("maker", "nvidia")
    return maker


def _section(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section's figures: its own, or those of the type that it says it is like."""
    section: dict[str, Any] = data[name]
    return _section(_read(section["like"]), name) if "like" in section else section


def _sm_speed(data: Mapping[str, Any]) -> float:
    """Return the speed of an SM over an A100's: as measured, or by the peaks."""
    measured: float | None = data["analytic"].get("speed")
    return _peak_per_sm(data) / _peak_per_sm(_read(REFERENCE)) if measured is None else measured


def _peak_per_sm(data: Mapping[str, Any]) -> float:
    peak: float = data["peak"]["fp16_tflops"]
    return peak / float(data["sm_count"])


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

"""Recognises GPU boards by their driver's readings.

A board is of the type that has its product name, else of the type with the same chip and the most
similar memory; peaks follow its multiprocessors and highest clock. Any other board is estimated:
from the most similar type, by compute capability.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cinquefoil.gpuagent.v1.records import Performance
from services.kit.hardware.gpu_types import GpuTable, Maker, load, names
from services.kit.units import BYTES_PER_GIB

_MAKERS: Final = frozenset({"nvidia", "tesla", "grid", "quadro", "amd", "instinct"})
_SAME_MEMORY: Final = 0.06
"""Relative difference up to which two boards have the same memory: ECC takes a sixteenth."""

_SIMILAR: Final = {(11, 0): (8, 9), (12, 0): (8, 9), (12, 1): (8, 9)}
"""Compute capabilities of chips with GDDR or LPDDR memory whose tensor cores are as fast, per SM
and clock, as those of an older capability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReading:
    """A driver's readings of a board; None: not reported, as in many virtual machines.

    Attributes:
        product_name: As `nvidia-smi` prints it, for example "NVIDIA A100-SXM4-40GB".
        memory_bytes: Memory.
        compute_capability: CUDA compute capability, (major, minor).
        sm_count: Streaming multiprocessors.
        max_clock_mhz: Highest SM clock, MHz.
        limit_w: Default power limit, W.
        memory_gb_per_s: Memory bandwidth by bus width and clock, 1e9 bytes/s.
        maker: Whose driver it is; AMD's "gfx942" has the compute capability (9, 0x42).
    """

    product_name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    sm_count: int | None = None
    max_clock_mhz: int | None = None
    limit_w: float | None = None
    memory_gb_per_s: float | None = None
    maker: Maker = "nvidia"


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A board as plans see it.

    Attributes:
        name: GPU type: the table's where memory agrees, else named after chip or product.
        sm_count: Streaming multiprocessors.
        idle_power_w, context_power_w, max_power_w: As of `GpuModel`; W.
        performance: How fast it is.
        estimated: It has no table, and neither has its chip.
    """

    name: str
    sm_count: int
    idle_power_w: float
    context_power_w: float
    max_power_w: float
    performance: Performance
    estimated: bool


def table_of(product_name: str, memory_bytes: int = 0) -> GpuTable | None:
    """Return the table of a board, or of one with its chip; None: there is none.

    Args:
        product_name: As NVML prints it.
        memory_bytes: Of several types with its chip, the one with the most similar memory counts.
    """
    tables = [load(name) for name in names()]
    exact = [each for each in tables if product_name in (each.product_name, *each.other_names)]
    chip = _chip(product_name)
    return _nearest(exact or [each for each in tables if chip in each.chip_names], memory_bytes)


def identify(reading: DriverReading) -> Board:
    """Return what a board is, by what its driver says of it."""
    known = table_of(reading.product_name, reading.memory_bytes)
    table = known or _most_similar(reading)
    sm_count = reading.sm_count or table.sm_count
    limit_w = reading.limit_w
    if limit_w is None:
        limit_w = table.max_power_w * (1.0 if known else sm_count / table.sm_count)
    part = limit_w / table.max_power_w  # PCIe boards have a lower limit, and draw less when idle
    return Board(
        name=_name(reading, known),
        sm_count=sm_count,
        idle_power_w=table.idle_power_w * part,
        context_power_w=table.context_power_w * part,
        max_power_w=limit_w,
        performance=_performance(reading, table, sm_count),
        estimated=known is None,
    )


def _performance(reading: DriverReading, table: GpuTable, sm_count: int) -> Performance:
    if reading.product_name == table.product_name:
        return table.performance
    clock_mhz = reading.max_clock_mhz or table.max_clock_mhz
    return Performance(
        fp16_tflops=table.fp16_tflops_per_sm * sm_count * clock_mhz / table.max_clock_mhz,
        memory_gb_per_s=reading.memory_gb_per_s or table.performance.memory_gb_per_s,
        like=table.name,
    )


def _most_similar(reading: DriverReading) -> GpuTable:
    """Return the type of the same compute capability, or of the highest one below it."""
    wanted = _SIMILAR.get(reading.compute_capability, reading.compute_capability)
    tables = [load(name) for name in names(reading.maker)]
    below = [each.compute_capability for each in tables if each.compute_capability <= wanted]
    found = max(below, default=min(each.compute_capability for each in tables))
    alike = [each for each in tables if each.compute_capability == found]
    return _nearest(alike, reading.memory_bytes) or alike[0]


def _nearest(tables: Iterable[GpuTable], memory_bytes: int) -> GpuTable | None:
    return min(tables, key=lambda each: abs(each.memory_bytes - memory_bytes), default=None)


def _name(reading: DriverReading, known: GpuTable | None) -> str:
    if known is None:
        return re.sub(r"[^a-z0-9]+", "-", reading.product_name.lower()).strip("-")
    memory_bytes = known.memory_bytes
    exact = reading.product_name in (known.product_name, *known.other_names)
    if exact or abs(reading.memory_bytes / memory_bytes - 1.0) <= _SAME_MEMORY:
        return known.name
    chip = known.chip_names[0].lower()
    return f"{chip}-{max(round(reading.memory_bytes / BYTES_PER_GIB), 1)}gb"


def _chip(product_name: str) -> str:
    """Return the first word that names no maker: "A100" of "NVIDIA A100-SXM4-40GB"."""
    words = re.split(r"[\s-]+", product_name)
    return next((word for word in words if word.lower() not in _MAKERS), "")

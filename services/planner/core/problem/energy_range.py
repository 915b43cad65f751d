"""Least and most energy of a model's request that any region's hardware can take.

A peer may run another variant on other GPUs. The least is that of the home's leanest variant at its
best batch, were its GPU the most efficient of the tables; the most that of its heaviest, alone in a
batch, were it the least efficient.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final

from services.kit.hardware import gpu_types
from services.planner.core.model import Model, Pool
from services.planner.core.problem.catalog import Place, measure, whole

_PEAKS: Final[tuple[Callable[[gpu_types.GpuTable], float], ...]] = (
    lambda table: table.peak.fp32_tflops,
    lambda table: table.peak.fp16_tflops,
    lambda table: table.peak.memory_gb_per_s,
)

_REACHED: Final = 2.0
"""Networks reach a larger part of the peaks of one type than of another."""

Range = tuple[float, float]
"""Least and most."""


def energy_range_j(model: Model, pools: Iterable[Pool], batch_sizes: Sequence[int]) -> Range | None:
    """Return the least and the most energy of a request in any region, J; None: not known.

    Args:
        model: The model; what a pipeline's first stages take is compared.
        pools: GPUs of this region.
        batch_sizes: Batch sizes that a plan may choose.
    """
    found = [
        (energy_j * factor, energy_j * most)
        for pool in {pool.type.name: pool for pool in pools}.values()
        for factor, most in [efficiency_range(pool.type.name)]
        for variant in model.variants
        for energy_j in _energies_j(Place(model, variant, pool, whole(pool)), batch_sizes)
    ]
    return (min(low for low, _ in found), max(high for _, high in found)) if found else None


def _energies_j(place: Place, batch_sizes: Sequence[int]) -> Iterable[float]:
    return (kind.energy_j for kind in measure(place, batch_sizes, 1) if kind.energy_j > 0)


@cache
def efficiency_range(name: str) -> Range:
    """Return what the same work may take elsewhere, least and most, of what it takes on a GPU type.

    By peaks for a watt of the power limit, whichever peak it is bound by.

    Args:
        name: Of a table; cores of a CPU may be anywhere between those.
    """
    tables = [gpu_types.load(each) for each in gpu_types.names()]
    here = [table for table in tables if table.name == name] or tables
    low, high = 1 / _REACHED, _REACHED
    for peak in _PEAKS:
        per_w = [peak(table) / table.max_power_w for table in tables]
        own = [peak(table) / table.max_power_w for table in here]
        low = min(low, min(own) / max(per_w) / _REACHED)
        high = max(high, max(own) / min(per_w) * _REACHED)
    return low, high

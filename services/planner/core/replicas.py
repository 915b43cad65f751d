"""Replicas of servers that are not ours: how many each pool of a model should have.

The load to provide for (forecast, boot time ahead, requests that wait, more where answers were
late) is given to the pools in the order of carbon per request: each takes as much as it serves
within the objective at its largest size, the next one the rest. Within a pool the number is the
smallest whose latency, by the queueing model of plans, keeps the objective.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.kit.config import Objective, ServerPool
from services.kit.hardware import gpu_types
from services.kit.mig import WHOLE
from services.planner.core.model import GpuType, Model, Pool, SegmentKind
from services.planner.core.problem.catalog import Place, in_time, measure
from services.planner.core.problem.queueing import latency_s
from services.planner.core.problem.stations import Station
from services.planner.core.problem.text_rule import Load, least_segments

_BISECTIONS = 24
_NOTHING_RPS = 1e-9


@dataclass(frozen=True, slots=True)
class Replicas:
    """Servers that a model should have.

    Attributes:
        by_pool: Number by pool.
        short: Whether even all pools at their largest cannot keep the objective.
    """

    by_pool: Mapping[str, int]
    short: bool = False

    @property
    def total(self) -> int:
        """Servers of all pools."""
        return sum(self.by_pool.values())


def wanted(
    model: Model,
    rate_rps: float,
    intensity_gco2e_per_kwh: Mapping[str, float],
    objective: Objective,
    batch_sizes: Sequence[int],
) -> Replicas:
    """Return how many servers each pool of a model should have.

    Args:
        model: The model, with its pools; its own demand does not count.
        rate_rps: Load to provide for, req/s; 0: none, so that pools shrink to `replicas_min`.
        intensity_gco2e_per_kwh: By zone; it has the zone of each pool.
        objective: Its latency rule and utilisation.
        batch_sizes: Requests of a server at a time to consider, beside `slots`.
    """
    by_pool = {name: pool.replicas_min for name, pool in model.servers.items()}
    kinds = _kinds(model, intensity_gco2e_per_kwh, objective, batch_sizes)
    left_rps = rate_rps
    for name, kind in sorted(kinds.items(), key=lambda each: _carbon_gco2e(each[1])):
        if left_rps <= _NOTHING_RPS:
            break
        most = model.servers[name].replicas_max
        count = _least(model, kind, left_rps, objective, most)
        if count is None:
            by_pool[name] = most
            left_rps -= _capacity_rps(model, kind, objective, most)
        else:
            by_pool[name] = max(count, by_pool[name])
            left_rps = 0.0
    return Replicas(by_pool, short=left_rps > _NOTHING_RPS)


def _carbon_gco2e(kind: SegmentKind) -> float:
    return kind.pool.carbon_gco2e(kind.energy_j)


def _kinds(
    model: Model,
    intensity_gco2e_per_kwh: Mapping[str, float],
    objective: Objective,
    batch_sizes: Iterable[int],
) -> dict[str, SegmentKind]:
    """Return each pool's server as a segment; those that the profile does not know are left out."""
    variants = {variant.name: variant for variant in model.variants}
    found = {}
    for name, pool in model.servers.items():
        sizes = sorted({*(size for size in batch_sizes if size <= pool.slots), pool.slots})
        at = Pool(_gpu_type(pool), pool.zone, pool.pue, intensity_gco2e_per_kwh[pool.zone])
        place = Place(model, variants[pool.variant], at, at.type.geometry.kind(pool.slice))
        points = tuple(measure(place, sizes, 1))
        fast = [kind for kind in points if in_time(objective, model, kind)]
        slow = min(points, key=lambda kind: kind.batch_size, default=None)
        kind = max(fast, key=lambda each: each.throughput_rps, default=slow)
        if kind is not None:
            found[name] = kind
    return found


def _gpu_type(pool: ServerPool) -> GpuType:
    table = gpu_types.load(pool.gpu)
    return GpuType(
        table.name,
        table.uncut if pool.slice == WHOLE else table.geometry,
        table.sm_count,
        table.idle_power_w,
        table.context_power_w,
        table.max_power_w,
        table.max_clock_mhz,
        performance=table.performance,
    )


def _least(
    model: Model, kind: SegmentKind, rate_rps: float, objective: Objective, most: int
) -> int | None:
    """Return the fewest servers that keep the objective under a load; None: `most` do not."""
    low, high = 1, most
    if not _suffices(model, kind, high, rate_rps, objective):
        return None
    while low < high:
        middle = (low + high) // 2
        if _suffices(model, kind, middle, rate_rps, objective):
            high = middle
        else:
            low = middle + 1
    return low


def _capacity_rps(model: Model, kind: SegmentKind, objective: Objective, count: int) -> float:
    """Return the largest load that servers take within the objective, req/s."""
    low, high = 0.0, count * kind.throughput_rps
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _suffices(model, kind, count, middle, objective):
            low = middle
        else:
            high = middle
    return low


def _suffices(
    model: Model, kind: SegmentKind, count: int, rate_rps: float, objective: Objective
) -> bool:
    if rate_rps > objective.max_utilisation * count * kind.throughput_rps:
        return False
    burst = model.dispersion
    if kind.token_times is not None:
        load = Load(rate_rps, burst.at_1s, burst.at_10s)
        least = least_segments(kind, load, model.slo_first_token_s, model.slo_percentile)
        if least > count:
            return False
    late_s = latency_s([Station(kind, count, rate_rps)], model.slo_percentile, burst)
    return late_s <= model.slo_latency_s

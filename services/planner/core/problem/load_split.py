"""Splits of load over segments, and of slices over models.

For strategies that decide only which segments run; `exact` decides on load as well.
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from itertools import permutations

from services.planner.core.model import Configuration, Model, SegmentKind
from services.planner.core.problem.catalog import in_time
from services.planner.core.problem.pricing import Prices
from services.planner.core.problem.serving_paths import ServingPath, serving_paths

ROUNDING = 1e-9
"""Relative step beyond a price at which two orders are equal."""


def with_load(known: Prices, segments: Mapping[SegmentKind, int]) -> Configuration:
    """Return `segments` with the load that suits the objective best.

    Per model, segments fill up in order of the value of their load, then of energy; those of a
    pipeline fill up together. If the accuracy floor is then missed, that split is mixed with the
    one that fills in order of accuracy, just enough. Load that no segment can take in time is
    spread over all of them by throughput and counts as late. The segments of a model that must
    survive a loss share its load in proportion to their capacity, as far as the floor allows: each
    serves already when another is lost.
    """
    chosen = {kind: count for kind, count in segments.items() if count > 0}
    load_rps: dict[SegmentKind, float] = {}
    for model in known.models.values():
        own = {kind: count for kind, count in chosen.items() if kind.model == model.name}
        load_rps |= _split(known, model, own)
    return Configuration(segments=chosen, load_rps=load_rps)


def apportion(
    slots: Iterable[Callable[[Model], SegmentKind | None]], models: Iterable[Model]
) -> dict[SegmentKind, int]:
    """Give each slot to the model with the least capacity for its demand so far.

    Args:
        slots: For each slot, the segment that each model would run there; None: it does not fit.
        models: Models in order of preference among equals.
    """
    segments: dict[SegmentKind, int] = {}
    in_order = sorted(models, key=lambda model: -model.demand_rps)
    queue = [(0.0, rank, model) for rank, model in enumerate(in_order)]
    for slot in slots:
        refused = []
        while queue:
            capacity, rank, model = heappop(queue)
            kind = slot(model)
            if kind is None:
                refused.append((capacity, rank, model))
                continue
            segments[kind] = segments.get(kind, 0) + 1
            heappush(queue, (capacity + kind.throughput_rps / model.demand_rps, rank, model))
            break
        for entry in refused:
            heappush(queue, entry)
    return segments


def _split(
    known: Prices, model: Model, segments: Mapping[SegmentKind, int]
) -> dict[SegmentKind, float]:
    objective = known.problem.objective
    usable = tuple(
        serving_paths(
            {
                kind: known.usable_rps(kind) * count
                for kind, count in segments.items()
                if in_time(objective, model, kind)
            }
        )
    )
    points = {path: path.mean(known.load_points) for path in usable}
    energy_j = {path: path.mean(lambda kind: kind.energy_j) for path in usable}
    best = _fill(usable, model.demand_rps, lambda path: (points[path], -energy_j[path]))
    short = {path: path.mean(known.shortfall) for path in usable}
    if _missed(short, best) > 0:
        best = _kept(points, short, model.demand_rps, best)
    if model.survive and len(usable) > 1:
        best = _shared(best, short)
    load_rps: dict[SegmentKind, float] = {}
    for path, rps in best.items():
        load_rps |= path.loads(rps)
    left_rps = model.demand_rps - sum(best.values())
    return _overflow(load_rps, segments, left_rps, model.demand_rps)


def _missed(short: Mapping[ServingPath, float], split: Mapping[ServingPath, float]) -> float:
    return sum(short[path] * rps for path, rps in split.items())


def _shared(
    best: Mapping[ServingPath, float], short: Mapping[ServingPath, float]
) -> dict[ServingPath, float]:
    """Return the split by capacity, mixed with the best as far as that keeps the floor better."""
    served_rps, capacity_rps = sum(best.values()), sum(path.capacity_rps for path in best)
    if capacity_rps <= 0:
        return dict(best)
    even = {path: served_rps * path.capacity_rps / capacity_rps for path in best}
    missed, spare = _missed(short, even), -_missed(short, best)
    weight = 1.0 if missed <= 0 else max(0.0, spare) / (missed + max(0.0, spare))
    return {path: weight * even[path] + (1.0 - weight) * best[path] for path in best}


def _kept(
    points: Mapping[ServingPath, float],
    short: Mapping[ServingPath, float],
    demand_rps: float,
    best: Mapping[ServingPath, float],
) -> dict[ServingPath, float]:
    """Return the best split that keeps the accuracy floor, or misses it least.

    A linear program with one constraint beside the capacities: at the optimal multiplier two orders
    of filling have equal value, and the answer is a mixture of the two.
    """
    turns = sorted(
        (points[one] - points[other]) / (short[one] - short[other])
        for one, other in permutations(points, 2)
        if short[one] > short[other] and points[one] > points[other]
    )

    def priced(price: float) -> dict[ServingPath, float]:
        return _fill(points, demand_rps, lambda path: (points[path] - price * short[path],))

    poor, good = dict(best), _fill(points, demand_rps, lambda path: (path.accuracy,))
    if _missed(short, good) > 0:
        return good
    low, high = 0, len(turns)
    while low < high:
        middle = (low + high) // 2
        split = priced(turns[middle] * (1 + ROUNDING))
        if _missed(short, split) > 0:
            poor, low = split, middle + 1
        else:
            good, high = split, middle
    missed, spare = _missed(short, poor), -_missed(short, good)
    weight = missed / (missed + spare)
    return {path: (1 - weight) * poor[path] + weight * good[path] for path in poor}


def _fill(
    usable: Iterable[ServingPath],
    demand_rps: float,
    worth: Callable[[ServingPath], tuple[float, ...]],
) -> dict[ServingPath, float]:
    load_rps = {}
    left_rps = demand_rps
    for path in sorted(usable, key=worth, reverse=True):
        load_rps[path] = min(path.capacity_rps, left_rps)
        left_rps -= load_rps[path]
    return load_rps


def _overflow(
    load_rps: Mapping[SegmentKind, float],
    segments: Mapping[SegmentKind, int],
    left_rps: float,
    demand_rps: float,
) -> dict[SegmentKind, float]:
    """Spread the load that no segment can take in time over all, by throughput."""
    if left_rps <= 1e-9 * demand_rps:
        return dict(load_rps)
    found = tuple(
        serving_paths({kind: count * kind.throughput_rps for kind, count in segments.items()})
    )
    total_rps = sum(path.capacity_rps for path in found)
    if total_rps <= 0:
        return dict(load_rps)  # no segment can serve anything
    late = {
        kind: rps
        for path in found
        for kind, rps in path.loads(left_rps * path.capacity_rps / total_rps).items()
    }
    kinds = dict.fromkeys((*load_rps, *late))
    return {kind: load_rps.get(kind, 0.0) + late.get(kind, 0.0) for kind in kinds}

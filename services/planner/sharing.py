"""Who gets what: load over segments, and slots over models.

For strategies that decide only what runs; `exact` decides on load as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from services.planner.catalog import in_time
from services.planner.domain import Configuration, Model, SegmentKind
from services.planner.pricing import Prices


def with_load(known: Prices, segments: Mapping[SegmentKind, int]) -> Configuration:
    """Return `segments` with the load that suits the objective best.

    Per model, segments fill up in order of what their load is worth. Where the accuracy floor is
    then missed, that split is mixed with the one that fills in order of accuracy, just enough.
    Load that no segment can take in time goes to all of them by throughput, and will be late.
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
    """Give each slot to the model that has least capacity for its demand so far.

    Args:
        slots: For each slot, what a model would run there; None: it does not fit.
        models: In order of preference where equal.
    """
    segments: dict[SegmentKind, int] = {}
    capacity_rps = {model.name: 0.0 for model in models}
    demanded = sorted(models, key=lambda model: -model.demand_rps)
    for slot in slots:
        offers = [(model, kind) for model in demanded if (kind := slot(model)) is not None]
        if offers:
            model, kind = min(
                offers, key=lambda offer: capacity_rps[offer[0].name] / offer[0].demand_rps
            )
            capacity_rps[model.name] += kind.throughput_rps
            segments[kind] = segments.get(kind, 0) + 1
    return segments


def _split(
    known: Prices, model: Model, segments: Mapping[SegmentKind, int]
) -> dict[SegmentKind, float]:
    objective = known.problem.objective
    usable_rps = {
        kind: objective.max_utilisation * kind.throughput_rps * count
        for kind, count in segments.items()
        if in_time(objective, model, kind)
    }
    best = _fill(usable_rps, model.demand_rps, known.load_points)
    short = sum(known.shortfall(kind) * rps for kind, rps in best.items())
    if short > 0:
        good = _fill(usable_rps, model.demand_rps, lambda kind: kind.accuracy)
        spare = -sum(known.shortfall(kind) * rps for kind, rps in good.items())
        weight = short / (short + spare) if spare > 0 else 1.0
        best = {kind: (1 - weight) * best[kind] + weight * good[kind] for kind in best}
    return _overflow(best, segments, model.demand_rps)


def _fill(
    usable_rps: Mapping[SegmentKind, float],
    demand_rps: float,
    worth: Callable[[SegmentKind], float],
) -> dict[SegmentKind, float]:
    load_rps = {}
    left_rps = demand_rps
    for kind in sorted(usable_rps, key=worth, reverse=True):
        load_rps[kind] = min(usable_rps[kind], left_rps)
        left_rps -= load_rps[kind]
    return load_rps


def _overflow(
    load_rps: Mapping[SegmentKind, float],
    segments: Mapping[SegmentKind, int],
    demand_rps: float,
) -> dict[SegmentKind, float]:
    rates = {kind: count * kind.throughput_rps for kind, count in segments.items()}
    left_rps = demand_rps - sum(load_rps.values())
    if left_rps <= 1e-9 * demand_rps:
        return dict(load_rps)
    total_rps = sum(rates.values())
    return {
        kind: load_rps.get(kind, 0.0) + left_rps * rate / total_rps for kind, rate in rates.items()
    }

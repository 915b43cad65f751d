"""What a configuration is worth: one judge for every strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from services.kit.errors import FailedPrecondition
from services.kit.units import S_PER_H
from services.planner.catalog import in_time
from services.planner.domain import Configuration, Model, Pool, Problem, Score, SegmentKind
from services.planner.packing import gpus_needed
from services.planner.pricing import Prices, prices, row
from services.planner.queueing import Station, latency_s


def score(problem: Problem, configuration: Configuration, known: Prices | None = None) -> Score:
    """Judge a configuration.

    Load counts as served where its segments keep the latency rule (a batch takes at most theta x
    SLO), up to rho x their throughput. Idle power counts for every GPU, or with `park_idle_gpus`
    for the fewest that hold the slices. Emissions are those of all load, late load included.

    Args:
        problem: The problem.
        configuration: Its slices must fit on the fleet.
        known: `prices(problem)`, where the caller scores often.

    Raises:
        FailedPrecondition: The slices do not fit on the fleet.
    """
    known = known or prices(problem)
    powered = _powered(problem, configuration)
    served = {name: _served(problem, model, configuration) for name, model in known.models.items()}
    watts = _watts(powered, configuration)
    reconfiguration = reconfiguration_points(known, configuration.segments)
    points = _load_points(known, served) - sum(
        count * known.idle_points(pool) for pool, count in powered.items()
    )
    return Score(
        unserved_rps={
            name: max(0.0, model.demand_rps - sum(served[name].values()))
            for name, model in known.models.items()
        },
        objective=points - reconfiguration,
        accuracy={name: _accuracy(load) for name, load in served.items()},
        latency_s={name: _latency_s(model, configuration) for name, model in known.models.items()},
        power_w=float(sum(watts.values())),
        carbon_gco2e_per_h=sum(pool.carbon_gco2e(w * S_PER_H) for pool, w in watts.items()),
        powered_gpus=sum(powered.values()),
        floor_violation=_floor_violation(known, served),
        reconfiguration=reconfiguration,
    )


def reconfiguration_points(known: Prices, segments: Mapping[SegmentKind, int]) -> float:
    """Return the price of getting from what runs to `segments`.

    Counts, not places: the segments beyond those of the same kind that run, and the slices beyond
    those of the same kind that exist, on each pool.
    """
    slices: Counter[tuple[Pool, str]] = Counter()
    started = 0
    for kind, count in segments.items():
        slices[kind.pool, kind.profile] += count
        started += max(0, count - known.running.get(row(kind), 0))
    created = sum(max(0, count - known.existing.get(key, 0)) for key, count in slices.items())
    return known.switch_points * started + known.layout_points * created


def _powered(problem: Problem, configuration: Configuration) -> Mapping[Pool, int]:
    needed = gpus_needed(problem, configuration.segments)
    if needed is None:
        raise FailedPrecondition("the configuration's slices do not fit on the fleet")
    return needed if problem.objective.park_idle_gpus else problem.pools


def _watts(powered: Mapping[Pool, int], configuration: Configuration) -> dict[Pool, float]:
    watts = {pool: count * pool.type.idle_power_w for pool, count in powered.items()}
    for kind, count in configuration.segments.items():
        rps = min(configuration.load_rps.get(kind, 0.0), count * kind.throughput_rps)
        watts[kind.pool] = watts.get(kind.pool, 0.0) + rps * kind.energy_j
    return watts


def _served(
    problem: Problem, model: Model, configuration: Configuration
) -> dict[SegmentKind, float]:
    """Return the load of a model that is served in time; demand beyond the model's is refused."""
    served = {}
    left_rps = model.demand_rps
    for kind, count in configuration.segments.items():
        if kind.model == model.name and in_time(problem.objective, model, kind):
            usable_rps = problem.objective.max_utilisation * kind.throughput_rps * count
            served[kind] = min(configuration.load_rps.get(kind, 0.0), usable_rps, left_rps)
            left_rps -= served[kind]
    return served


def _load_points(known: Prices, served: Mapping[str, Mapping[SegmentKind, float]]) -> float:
    return sum(
        known.load_points(kind) * rps / known.models[name].demand_rps
        for name, load in served.items()
        for kind, rps in load.items()
    )


def _floor_violation(known: Prices, served: Mapping[str, Mapping[SegmentKind, float]]) -> float:
    short = {
        name: sum(known.shortfall(kind) * rps for kind, rps in load.items())
        for name, load in served.items()
    }
    return sum(max(0.0, value) for value in short.values()) / known.demand_rps if short else 0.0


def _accuracy(load: Mapping[SegmentKind, float]) -> float:
    total_rps = sum(load.values())
    return sum(k.accuracy * rps for k, rps in load.items()) / total_rps if total_rps else 0.0


def _latency_s(model: Model, configuration: Configuration) -> float:
    stations = _stations(model, configuration)
    return latency_s(tuple(stations), model.slo_percentile)


def _stations(model: Model, configuration: Configuration) -> Iterable[Station]:
    for kind, count in configuration.segments.items():
        if kind.model == model.name and count:
            yield Station(
                processes=count * kind.processes,
                capacity_rps=count * kind.throughput_rps,
                batch_s=kind.latency_s,
                load_rps=configuration.load_rps.get(kind, 0.0),
            )

"""Score of a configuration, the same for every strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from services.kit.errors import FailedPrecondition
from services.kit.units import S_PER_H
from services.planner.core.model import (
    Configuration,
    Model,
    Pool,
    Problem,
    Queue,
    Score,
    SegmentKind,
    queue_of,
)
from services.planner.core.problem.catalog import in_time
from services.planner.core.problem.latency_rule import keeps_percentile
from services.planner.core.problem.packing import gpus_needed
from services.planner.core.problem.pricing import Prices, Row, gpcs, prices, row
from services.planner.core.problem.queueing import latency_s
from services.planner.core.problem.serving_paths import serving_paths
from services.planner.core.problem.site_power import over_budget, site_w
from services.planner.core.problem.stations import Station

Served = Mapping[str, Mapping[SegmentKind, float]]
"""Load served in time by model and kind, req/s; a pipeline's is in each of its stages."""


_NOTHING = 1e-6
"""Share of a demand left over by a solver's tolerance, not for lack of capacity."""


def score(
    problem: Problem,
    configuration: Configuration,
    known: Prices | None = None,
    in_use: Mapping[Pool, int] | None = None,
) -> Score:
    """Return the score of a configuration.

    Load counts as served if its segments keep the latency rule (a batch takes at most theta x SLO),
    up to their admissible load (`latency_rule`), and if the predicted percentile keeps the SLO.
    Idle power counts for every GPU, or with `park_idle_gpus` for those in use; the additional power
    of a GPU with segments for those in use. Emissions are those of all load, including late load.

    Args:
        problem: The problem.
        configuration: The configuration; its slices must fit on the fleet.
        known: `prices(problem)`, for callers that score often.
        in_use: GPUs with segments; None: the fewest that hold the slices.

    Raises:
        FailedPrecondition: The slices do not fit on the fleet.
    """
    known = known or prices(problem)
    served = {name: _served(known, model, configuration) for name, model in known.models.items()}
    latency_s = {name: _latency_s(model, configuration) for name, model in known.models.items()}
    unserved_rps = {
        name: _unserved_rps(known, model, served[name], latency_s[name])
        for name, model in known.models.items()
    }
    use = _Use.of(known, configuration, in_use)
    watts = use.watts
    power_w = site_w(problem, use.in_use, use.active_w) if problem.sites else {}
    goals = _goals(known, served, use)
    reconfiguration = reconfiguration_points(known, configuration.segments)
    return Score(
        unserved_rps=unserved_rps,
        objective=known.weighted(goals) - reconfiguration,
        accuracy={name: _accuracy(load) for name, load in served.items()},
        latency_s=latency_s,
        power_w=float(sum(watts.values())),
        carbon_gco2e_per_h=sum(pool.carbon_gco2e(w * S_PER_H) for pool, w in watts.items()),
        gpus=sum(use.powered.values()),
        floor_violation=_floor_violation(known, served),
        reconfiguration=reconfiguration,
        worst_unserved=_worst_unserved(known, unserved_rps),
        gpus_in_use=use.gpus,
        gpcs=use.gpcs,
        loading_s=use.loading_s,
        active_power_w=use.active_power_w,
        refused_rps=sum(
            model.overload_weight * unserved_rps[name] for name, model in known.models.items()
        ),
        site_w=power_w,
        cost_eur_per_h=_cost_eur_per_h(problem, watts),
        over_budget=over_budget(problem, power_w),
        ties=(-float(use.gpcs), -use.active_power_w) if known.fewest_only else (),
    )


def reconfiguration_points(known: Prices, segments: Mapping[SegmentKind, int]) -> float:
    """Return the price of the change from the running segments to `segments`, in points.

    By counts, not places: segments beyond those that run of the same row, and slices beyond those
    that exist of the same kind, on each pool. Clocks change without a restart.
    """
    slices: Counter[tuple[Pool, str]] = Counter()
    for kind, count in segments.items():
        slices[kind.pool, kind.profile] += count
    kinds = {row(kind): kind for kind in segments}
    started = sum(
        count * known.start_points(kinds[what]) for what, count in _started(known, segments).items()
    )
    created = sum(max(0, count - known.existing.get(key, 0)) for key, count in slices.items())
    return started + known.layout_points * created


def longest_loading_s(known: Prices, segments: Mapping[SegmentKind, int]) -> float:
    """Return the longest loading time of a variant of which a segment has to be started, s."""
    variants = {(model, variant) for model, variant, *_ in _started(known, segments)}
    return max((known.loading_s.get(each, 0.0) for each in variants), default=0.0)


def _started(known: Prices, segments: Mapping[SegmentKind, int]) -> Counter[Row]:
    """Return the number of segments of each row to start: those beyond the running ones."""
    rows: Counter[Row] = Counter()
    for kind, count in segments.items():
        rows[row(kind)] += count
    return rows - Counter(known.running)


@dataclass(frozen=True, slots=True)
class _Use:
    """Resources that a configuration takes.

    Attributes:
        in_use: GPUs with segments.
        gpcs: Compute slices.
        powered: GPUs whose idle power counts.
        active_w: Power above idle, W.
        loading_s: InfAdapter's LC, s.
    """

    in_use: Mapping[Pool, int]
    gpcs: int
    powered: Mapping[Pool, int]
    active_w: Mapping[Pool, float]
    loading_s: float

    @classmethod
    def of(
        cls, known: Prices, configuration: Configuration, in_use: Mapping[Pool, int] | None
    ) -> _Use:
        """Count the resources of a configuration.

        Raises:
            FailedPrecondition: The slices do not fit on the fleet.
        """
        problem = known.problem
        segments = {kind: count for kind, count in configuration.segments.items() if count > 0}
        if in_use is None:
            in_use = gpus_needed(problem, segments)
        if in_use is None:
            raise FailedPrecondition("the configuration's slices do not fit on the fleet")
        return cls(
            in_use=in_use,
            gpcs=sum(count * gpcs(kind) for kind, count in segments.items()),
            powered=in_use if problem.objective.park_idle_gpus else problem.pools,
            active_w=active_w(configuration),
            loading_s=longest_loading_s(known, segments),
        )

    @property
    def gpus(self) -> int:
        """Number of GPUs with segments."""
        return sum(self.in_use.values())

    @property
    def active_power_w(self) -> float:
        """Power of the fleet above that of idle GPUs, W."""
        return float(sum(self.active_w.values()))

    @property
    def watts(self) -> dict[Pool, float]:
        """Power by pool, W."""
        return {
            pool: count * pool.type.idle_power_w
            + self.in_use.get(pool, 0) * pool.type.use_power_w
            + self.active_w.get(pool, 0.0)
            for pool, count in self.powered.items()
        }


def active_w(configuration: Configuration) -> dict[Pool, float]:
    """Return the power above idle, W; at most that at full throughput."""
    watts: dict[Pool, float] = {}
    for kind, count in configuration.segments.items():
        rps = min(configuration.load_rps.get(kind, 0.0), count * kind.throughput_rps)
        watts[kind.pool] = watts.get(kind.pool, 0.0) + rps * kind.energy_j
    return watts


def _cost_eur_per_h(problem: Problem, watts: Mapping[Pool, float]) -> float | None:
    objective = problem.objective
    priced = objective.kind == "cost" or any(pool.eur_per_kwh for pool in problem.pools)
    carbon_price = objective.carbon_price_eur_per_t if objective.kind == "cost" else 0.0
    costs = (pool.cost_eur(w * S_PER_H, carbon_price) for pool, w in watts.items())
    return sum(costs) if priced else None


def _goals(known: Prices, served: Served, use: _Use) -> dict[str, float]:
    """Return the value of each goal by itself; see `services.planner.core.problem.pricing`."""
    shares = [
        (kind, rps / known.models[name].demand_rps)
        for name, load in served.items()
        for kind, rps in load.items()
    ]
    idle = sum(count * known.idle_points(pool) for pool, count in use.powered.items())
    idle += sum(count * known.use_points(pool) for pool, count in use.in_use.items())
    weights = known.problem.objective.infadapter
    return {
        "clover": sum(known.clover_points(kind) * share for kind, share in shares) - idle,
        "fewest_gpus": -100.0 * use.gpus / max(1, len(known.problem.gpus)),
        "infadapter": 100.0
        * (
            weights.accuracy * sum(known.accuracy_share(kind) * share for kind, share in shares)
            - weights.resources * use.gpcs / known.fleet_gpcs
            - weights.loading * use.loading_s
        ),
    }


def _served(known: Prices, model: Model, configuration: Configuration) -> dict[SegmentKind, float]:
    """Return a model's load that is served in time, req/s; load above its demand is refused."""
    taken = {
        kind: min(
            configuration.load_rps.get(kind, 0.0),
            known.usable_rps(kind) * count,
        )
        for kind, count in configuration.segments.items()
        if kind.model == model.name and in_time(known.problem.objective, model, kind)
    }
    served = dict.fromkeys(taken, 0.0)
    left_rps = model.demand_rps
    for path in serving_paths(taken):
        rps = min(path.capacity_rps, left_rps)
        served |= path.loads(rps)
        left_rps -= rps
    return served


def _answered_rps(load: Mapping[SegmentKind, float]) -> float:
    """Return the answers per second of a load: a pipeline's requests count once."""
    return sum(rps for kind, rps in load.items() if not kind.stage.index)


def _unserved_rps(
    known: Prices, model: Model, load: Mapping[SegmentKind, float], latency_s: float
) -> float:
    """Return the demand that is not served in time, req/s.

    Where each segment keeps its admissible load but all together miss the objective: the closer
    they come, the less.
    """
    left_rps = model.demand_rps - _answered_rps(load)
    if left_rps > _NOTHING * model.demand_rps:
        return left_rps
    if latency_s <= model.slo_latency_s or not keeps_percentile(known.problem.objective):
        return 0.0
    return model.demand_rps * (1.0 - model.slo_latency_s / latency_s)


def _worst_unserved(known: Prices, unserved_rps: Mapping[str, float]) -> float:
    shares = (
        model.overload_weight * unserved_rps[name] / model.demand_rps
        for name, model in known.models.items()
        if name in known.shared_out
    )
    return max(0.0, *shares, 0.0)


def _floor_violation(known: Prices, served: Served) -> float:
    """Return the models' distances below the floor, each of its own demand: rare ones count."""
    short = {
        name: sum(known.shortfall(kind) * rps for kind, rps in load.items())
        for name, load in served.items()
    }
    return sum(max(0.0, value) / known.models[name].demand_rps for name, value in short.items())


def _accuracy(load: Mapping[SegmentKind, float]) -> float:
    first = {kind: rps for kind, rps in load.items() if not kind.stage.index}
    total_rps = sum(first.values())
    return sum(k.accuracy * rps for k, rps in first.items()) / total_rps if total_rps else 0.0


def _latency_s(model: Model, configuration: Configuration) -> float:
    """Return the predicted latency: the model's queue, plus the slowest pipeline's rest, s.

    The percentiles of a pipeline's stages are added up, which errs on the high side.
    """
    stations: dict[Queue, list[Station]] = {queue_of(model.name, "", 0): []}
    transfers_s: dict[str, dict[int, float]] = {}
    for kind, count in configuration.segments.items():
        if kind.model == model.name and count:
            stations.setdefault(kind.queue, []).append(_station(kind, count, configuration))
            if kind.stage.of > 1:
                transfers_s.setdefault(kind.variant, {})[kind.stage.index] = kind.stage.transfer_s
    known_s = {
        queue: latency_s(tuple(served), model.slo_percentile, model.dispersion)
        for queue, served in stations.items()
    }
    first_s = known_s.pop(queue_of(model.name, "", 0))
    further_s = (
        sum(each for (_, name, _), each in known_s.items() if name == variant)
        + sum(each for index, each in hops_s.items() if index < len(hops_s) - 1)
        for variant, hops_s in transfers_s.items()
    )
    return first_s + max(further_s, default=0.0)


def _station(kind: SegmentKind, count: int, configuration: Configuration) -> Station:
    return Station(kind, count, configuration.load_rps.get(kind, 0.0))

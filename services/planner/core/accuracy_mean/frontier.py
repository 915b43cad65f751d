"""Plans that are best at some price of accuracy, for the fleet and its usual loads.

A plan depends on intensity and on the price of accuracy through their ratio alone: all plans that
are best at some ratio are found by searches between neighbours until nothing new comes. Of a large
fleet a small one of the same mix stands for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.kit.grouping import summed
from services.kit.units import S_PER_H
from services.planner.core.model import Configuration, Problem
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.score import score
from services.planner.core.solver.stopwatch import Stopwatch

Floats = NDArray[np.float64]

CHEAPEST: Final = 1e-3
DEAREST: Final = 1e3
"""Prices at the ends of the frontier, in units: no family of variants spans more."""

_MOST_GPUS: Final = 32
_MOST_PLANS: Final = 16
_NEW: Final = 3e-3
"""Share of the distance between neighbours below which a plan between them is none of its own."""
_ALIKE: Final = 5e-4
"""Difference of mean accuracy, relative, below which two plans are alike."""

_LEAST_SEARCH_S: Final = 0.1
"""Least time limit of one search, s: the two ends are searched for in any case."""

_LEAST_GRID: Final = 1e-3
"""Intensity relative to the objective's reference that a grid without emissions counts as."""


@dataclass(frozen=True, slots=True)
class Level:
    """The frontier at one load.

    Attributes:
        load: The load, relative to the usual one.
        prices: Prices in units, ascending, from which the next plan is the best.
        accuracy: Mean accuracy of each plan, relative to the best variant's, by model.
        emitted_gco2e_per_h: Emissions of each plan, of the whole fleet.
        model_gco2e_per_h: Emissions of each model's requests, beyond what GPUs draw without work.
    """

    load: float
    prices: Floats
    accuracy: Mapping[str, Floats]
    emitted_gco2e_per_h: Floats
    model_gco2e_per_h: Mapping[str, Floats] = field(default_factory=dict)

    def emitted(self, model: str = "") -> Floats:
        """Return the emissions of each plan, of a model or of all, gCO2e/h."""
        return self.model_gco2e_per_h[model] if model else self.emitted_gco2e_per_h


@dataclass(frozen=True, slots=True)
class Frontier:
    """The frontier at the usual grid and several loads.

    Attributes:
        intensity_gco2e_per_kwh: Usual intensity by zone, for which the prices are.
        power_w: Largest power by zone, PUE included: zones weigh by it.
        demand_rps: Usual load by model, req/s.
        unit_gco2e: Unit of prices by model: gCO2e of a request that a point of accuracy is worth.
        levels: At least one, by load.
    """

    intensity_gco2e_per_kwh: Mapping[str, float]
    power_w: Mapping[str, float]
    demand_rps: Mapping[str, float]
    unit_gco2e: Mapping[str, float]
    levels: tuple[Level, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """One plan.

    Attributes:
        emitted: Emissions, gCO2e/s.
        lost: Worth of its lost accuracy, units/s.
        accuracy: Mean accuracy relative to the best variant's, by model.
        shares: Share of the emissions that is of a model's requests, by model.
    """

    emitted: float
    lost: float
    accuracy: Mapping[str, float]
    shares: Mapping[str, float] = field(default_factory=dict)


def frontier(
    problem: Problem,
    loads: Sequence[float],
    solve: Callable[[Problem], Configuration],
    limit_s: float,
) -> Frontier:
    """Return the frontier of a fleet.

    Args:
        problem: The problem at the usual grid and load; what runs does not matter.
        loads: Loads, relative to the usual one.
        solve: The strategy.
        limit_s: Limit of all searches together in processor time, see `Stopwatch`, s; the frontier
            is coarser if they take longer.
    """
    small = _small(replace(problem, running=(), forecast=()))
    known, grid = prices(small), {pool.zone: pool.intensity_gco2e_per_kwh for pool in small.pools}
    usual = float(np.mean(list(grid.values()))) / small.objective.baseline_intensity_gco2e_per_kwh
    unit_gco2e = {
        name: max(usual, _LEAST_GRID) * rate / known.models[name].demand_rps / 100
        for name, rate in known.baseline_gco2e_per_s.items()
    }
    levels = []
    whole = len(problem.gpus) / len(small.gpus)
    for index, load in enumerate(loads):
        share_s = max(limit_s, 0.0) / (len(loads) - index)
        watch = Stopwatch()
        level = _level(small, load, unit_gco2e, solve, share_s)
        levels.append(
            replace(
                level,
                emitted_gco2e_per_h=whole * level.emitted_gco2e_per_h,
                model_gco2e_per_h={m: whole * each for m, each in level.model_gco2e_per_h.items()},
            )
        )
        limit_s -= watch.time_s
    power_w: dict[str, float] = {}
    for pool, count in problem.pools.items():
        watts = count * pool.pue * pool.type.max_power_w
        power_w[pool.zone] = power_w.get(pool.zone, 0.0) + watts
    demand_rps = {model.name: model.demand_rps for model in problem.models}
    return Frontier(grid, power_w, demand_rps, unit_gco2e, tuple(levels))


def _level(
    problem: Problem,
    load: float,
    unit_gco2e: Mapping[str, float],
    solve: Callable[[Problem], Configuration],
    limit_s: float,
) -> Level:
    models = tuple(replace(m, demand_rps=load * m.demand_rps) for m in problem.models)
    watch = Stopwatch()
    at_load = replace(
        problem,
        models=models,
        time_limit_s=min(problem.time_limit_s, max(limit_s / _MOST_PLANS * 2, _LEAST_SEARCH_S)),
    )

    def best(price: float) -> _Plan:
        worth = {name: price * unit for name, unit in unit_gco2e.items()}
        posed = replace(at_load, accuracy_price=worth)
        configuration = solve(posed)
        found = score(posed, configuration)
        priced = [model for model in models if model.name in worth]
        accuracy = {m.name: found.accuracy[m.name] / m.best.accuracy for m in priced}
        lost = sum(100 * unit_gco2e[m.name] * (1 - accuracy[m.name]) * m.demand_rps for m in priced)
        emitted = found.carbon_gco2e_per_h / S_PER_H
        return _Plan(emitted, lost, accuracy, _shares(configuration, emitted))

    plans = _vertices(best, lambda: watch.time_s < limit_s)
    emitted = np.array([S_PER_H * plan.emitted for plan in plans])
    return Level(
        load,
        np.array([_price(*pair) for pair in pairwise(plans)]),
        {name: np.array([plan.accuracy.get(name, 1.0) for plan in plans]) for name in unit_gco2e},
        emitted,
        {
            model.name: emitted * np.array([plan.shares.get(model.name, 0.0) for plan in plans])
            for model in models
        },
    )


def _shares(configuration: Configuration, emitted: float) -> dict[str, float]:
    """Return the share of a configuration's emissions that is of each model's requests."""
    active = summed(
        (kind.model, kind.pool.carbon_gco2e(kind.energy_j) * rps)
        for kind, rps in configuration.load_rps.items()
    )
    return {model: each / emitted for model, each in active.items()} if emitted else {}


def _vertices(best: Callable[[float], _Plan], may_search: Callable[[], bool]) -> list[_Plan]:
    """Return the plans of the frontier, the least accurate first; the largest gaps first."""
    least, most = best(CHEAPEST), best(DEAREST)
    if not _apart(least, most):
        return [most]
    found, waiting = [least, most], [(most.lost - least.lost, 0, least, most)]
    for number in range(1, _MOST_PLANS):
        if not waiting or not may_search():
            break
        _, _, cheap, dear = heapq.heappop(waiting)
        price = _price(cheap, dear)
        between = best(price)
        gain = (cheap.emitted + price * cheap.lost) - (between.emitted + price * between.lost)
        new = gain > _NEW * price * (cheap.lost - dear.lost)
        if new and dear.lost < between.lost < cheap.lost:
            found.append(between)
            for index, (low, high) in enumerate(((cheap, between), (between, dear))):
                if _apart(low, high):
                    order = 2 * number + index
                    heapq.heappush(waiting, (high.lost - low.lost, order, low, high))
    return list(_convex(sorted(found, key=lambda plan: (-plan.lost, plan.emitted))))


def _apart(cheap: _Plan, dear: _Plan) -> bool:
    """Return whether a plan between two is worth a search."""
    gaps = [abs(dear.accuracy[name] - each) for name, each in cheap.accuracy.items()]
    return (
        max(gaps, default=0.0) > _ALIKE
        and cheap.lost > dear.lost
        and dear.emitted - cheap.emitted > 0.01 * dear.emitted
    )


def _price(cheap: _Plan, dear: _Plan) -> float:
    """Return the price from which the more accurate of two plans is the better."""
    return (dear.emitted - cheap.emitted) / (cheap.lost - dear.lost)


def _convex(plans: Sequence[_Plan]) -> Iterator[_Plan]:
    """Yield the plans that are best at some price; a search may have ended early."""
    kept: list[_Plan] = []
    for plan in plans:
        if kept and plan.lost >= kept[-1].lost:
            continue
        while kept and (
            plan.emitted <= kept[-1].emitted
            or (len(kept) > 1 and _price(kept[-2], kept[-1]) >= _price(kept[-1], plan))
        ):
            kept.pop()
        kept.append(plan)
    yield from kept


def _small(problem: Problem) -> Problem:
    """Return a fleet of at most _MOST_GPUS, or as many as there are models, of the same mix."""
    most = max(_MOST_GPUS, len(problem.models), len(problem.pools))
    share = min(most / len(problem.gpus), 1.0)
    left = {pool: max(1, round(share * count)) for pool, count in problem.pools.items()}
    gpus = []
    for gpu in problem.gpus:
        if left[gpu.pool]:
            left[gpu.pool] -= 1
            gpus.append(replace(gpu, slices=(), clock_mhz=0))
    share = len(gpus) / len(problem.gpus)
    models = tuple(replace(m, demand_rps=share * m.demand_rps) for m in problem.models)
    return replace(problem, gpus=tuple(gpus), models=models)

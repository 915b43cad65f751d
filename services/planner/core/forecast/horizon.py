"""Plans over a horizon: a change is made only if it pays back before it would be undone.

    forecast -> few scenarios -> candidates -> best path through the periods -> its first step

A candidate is a set of segments: the strategy's decision for now, the running segments, and the
strategy's decision for each scenario of the forecast, with prices spread over the scenario's time.
Of all sequences of one candidate per period, the best is found exactly (`best_path`):

    sum over periods of hours * points(candidate, intensities) - sum over changes of price(from, to)

A price is paid once while points are earned by the hour: a gain of as many points as the price must
last one hour. Unserved load, and accuracy below the floor, outweigh any points. The first step of
the path is the decision; the next decision uses a newer forecast (receding horizon).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from services.kit.units import S_PER_H
from services.planner.core.forecast.scenario_reduction import reduced
from services.planner.core.forecast.shortest_path import Worth, best_path
from services.planner.core.model import Configuration, Period, Pool, Problem, SegmentKind
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.packing import gpus_needed
from services.planner.core.problem.pricing import Prices, Row, prices, row, running_kinds, usable
from services.planner.core.problem.score import (
    longest_loading_s,
    reconfiguration_points,
    score,
)

Strategy = Callable[[Problem], Configuration]
Segments = Mapping[SegmentKind, int]

FORESEEING = frozenset({"annealing", "exact", "oracle", "random"})
"""Strategies that weigh points against prices; the others ignore the running segments."""

MAX_SOLVES = 6
"""Scenarios that the strategy solves."""

MAX_SCENARIOS = 24
"""Scenarios in which candidates are scored."""

POINTS = 4
"""Position of the objective in `Score.worth`, after shortages that no points outweigh."""


def plan_ahead(problem: Problem, strategy: Strategy) -> Configuration:
    """Return the configuration to run now, in view of the forecast.

    Without a forecast beyond the current period it is the strategy's own answer. No gap is proven
    for any other answer.

    Args:
        problem: Its `forecast` begins with the current period, in which the pools' intensities
            hold. The solves share its time limit; the current period's gets half.
        strategy: Strategy for each solve.
    """
    if len(problem.forecast) < 2:
        return strategy(problem)
    known = prices(problem)
    answer, *others = _answers(problem, strategy)
    candidates = _distinct([answer.segments, *_running(known), *(each.segments for each in others)])
    first = best_first(known, candidates)
    if first == 0:
        return answer
    return replace(with_load(known, candidates[first]), limited=answer.limited)


def best_first(known: Prices, candidates: Sequence[Segments]) -> int:
    """Return the position of the candidate that starts the best path through the forecast.

    Args:
        known: Prices of a problem with a forecast.
        candidates: At least one; each must fit on the fleet. Of equals, the first wins.
    """
    forecast = known.problem.forecast
    play = reduced(forecast, MAX_SCENARIOS)
    scenarios = [
        _Scenario.present(known),
        *(_Scenario.later(known, each) for each in play.scenarios[1:]),
    ]
    worths = [[scenario.worth(each) for each in candidates] for scenario in scenarios]
    zero = (0.0,) * len(worths[0][0])
    after = [_after(known, each) for each in candidates]
    return best_path(
        [
            [tuple(period.length_s / S_PER_H * part for part in worth) for worth in worths[number]]
            for period, number in zip(forecast, play.order, strict=True)
        ],
        [_cost(known, each, zero) for each in candidates],
        [[_cost(there, each, zero) for each in candidates] for there in after],
    )[0]


@dataclass(frozen=True, slots=True)
class _Scenario:
    """A period treated as the current one.

    Attributes:
        known: Its problem, priced without costs of changes.
        pools: The scenario's pool for each current pool.
    """

    known: Prices
    pools: Mapping[Pool, Pool]

    @classmethod
    def present(cls, known: Prices) -> _Scenario:
        return cls(replace(known, loading_s={}), {pool: pool for pool in known.problem.pools})

    @classmethod
    def later(cls, known: Prices, period: Period) -> _Scenario:
        pools = _pools(known.problem, period)
        seen = _seen(replace(known.problem, catalog=()), pools, period)
        return cls(replace(known, problem=seen, loading_s={}), pools)

    def worth(self, segments: Segments) -> Worth:
        """Return the worth of an hour of `segments`, with the load that suits them best."""
        moved = {_moved(kind, self.pools): count for kind, count in segments.items()}
        found = score(self.known.problem, with_load(self.known, moved), self.known)
        paid = replace(found, objective=found.objective + found.reconfiguration)
        return paid.worth


def _cost(known: Prices, segments: Segments, zero: Worth) -> Worth:
    """Return the price of getting to `segments` as a worth: fewer points, all else equal."""
    loading_s = longest_loading_s(known, segments)
    points = reconfiguration_points(known, segments) + known.loading_points * loading_s
    return (*zero[:POINTS], -points, *zero[POINTS + 1 :])


def _after(known: Prices, segments: Segments) -> Prices:
    """Return the prices once `segments` run, with only their slices existing."""
    running: Counter[Row] = Counter()
    existing: Counter[tuple[Pool, str]] = Counter()
    for kind, count in segments.items():
        running[row(kind)] += count
        existing[kind.pool, kind.profile] += count
    return replace(known, running=running, existing=existing)


def _answers(problem: Problem, strategy: Strategy) -> Iterator[Configuration]:
    """Yield the strategy's answers in the current pools; that for the current period first."""
    questions = list(_questions(problem))
    limit_s = problem.time_limit_s / 2 if questions else problem.time_limit_s
    yield strategy(replace(problem, time_limit_s=limit_s))
    for question, pools in questions:
        present = {there: here for here, there in pools.items()}
        limited = replace(question, time_limit_s=problem.time_limit_s / 2 / len(questions))
        found = strategy(limited)
        moved = {_moved(kind, present): count for kind, count in found.segments.items()}
        yield replace(found, segments=moved, load_rps={})


def _questions(problem: Problem) -> Iterator[tuple[Problem, Mapping[Pool, Pool]]]:
    """Yield each scenario's problem, with prices spread over its hours, and its pools.

    The current period is solved again only if prices make a difference.
    """
    for number, scenario in enumerate(reduced(problem.forecast, MAX_SOLVES).scenarios):
        hours = scenario.length_s / S_PER_H
        pools = _pools(problem, scenario) if number else {pool: pool for pool in problem.pools}
        if number or (hours != problem.pays_back_h and _priced(problem)):
            yield replace(_seen(problem, pools, scenario), pays_back_h=hours), pools


def _priced(problem: Problem) -> bool:
    """Return whether changes have a price."""
    objective = problem.objective
    loads = any(problem.boot_s.values()) or any(
        variant.load_s for model in problem.models for variant in model.variants
    )
    return objective.switch_price > 0 or objective.layout_price > 0 or loads


def _running(known: Prices) -> Iterator[Segments]:
    """Yield the configuration of the running segments, if they can serve and fit on the fleet."""
    problem = known.problem
    kept = Counter(
        kind
        for kind in running_kinds(problem)
        if usable(problem, known.models.get(kind.model), kind)
    )
    if kept and gpus_needed(problem, kept) is not None:
        yield kept


def _distinct(candidates: Sequence[Segments]) -> list[Segments]:
    found: dict[frozenset[tuple[SegmentKind, int]], Segments] = {}
    for each in candidates:
        kept = {kind: count for kind, count in each.items() if count > 0}
        found.setdefault(frozenset(kept.items()), kept)
    return list(found.values())


def _seen(problem: Problem, pools: Mapping[Pool, Pool], period: Period) -> Problem:
    """Return the problem posed in other pools and budgets, with the segments running now."""
    return replace(
        problem,
        sites=problem.sites if period.sites is None else period.sites,
        gpus=tuple(replace(gpu, pool=pools[gpu.pool]) for gpu in problem.gpus),
        catalog=tuple(_moved(kind, pools) for kind in problem.catalog),
        forecast=(),
    )


def _pools(problem: Problem, period: Period) -> dict[Pool, Pool]:
    there, eur_per_kwh = period.intensity_gco2e_per_kwh, period.eur_per_kwh
    return {
        pool: replace(
            pool,
            intensity_gco2e_per_kwh=there.get(pool.zone, pool.intensity_gco2e_per_kwh),
            eur_per_kwh=eur_per_kwh.get(pool.zone, pool.eur_per_kwh),
        )
        for pool in problem.pools
    }


def _moved(kind: SegmentKind, pools: Mapping[Pool, Pool]) -> SegmentKind:
    return replace(kind, pool=pools.get(kind.pool, kind.pool))

"""Plans with foresight: a change is made only if it pays back before it would be undone.

    forecast -> few scenes -> candidates -> best way through the periods -> its first step

A candidate is a set of segments: what the strategy answers now, what runs, and what the strategy
answers to each scene of the forecast when prices are spread over the time that the scene lasts. Of
all ways to be in one candidate in each period, the best is found exactly (`way`):

    sum over periods of hours * points(candidate, intensities) - sum over changes of price(from, to)

A price is paid once while points are earned by the hour: a gain of as many points as the price is
must last one hour. Load that is not served, and accuracy below the floor, come before any points.
The way's first step is the decision; the next decision sees a newer forecast (receding horizon).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from services.kit.config import Objective
from services.kit.units import S_PER_H
from services.planner.core.forecast.scenario_reduction import stage
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
"""Strategies that weigh points against prices. To the others what runs is no alternative."""

MOST_QUESTIONS = 6
"""Scenes that the strategy is asked about."""

MOST_JUDGED = 24
"""Scenes that candidates are judged in."""

POINTS = 3
"""Where the objective is in `Score.worth`, after what no points make up for."""


def plan_ahead(problem: Problem, strategy: Strategy) -> Configuration:
    """Return what to run now, in view of the forecast.

    Without a forecast beyond the present period it is the strategy's own answer. Nothing is proven
    for any other answer.

    Args:
        problem: Its `forecast` begins with the present period, in which the pools' intensities are
            in force. The questions share its time limit; the present's gets half.
        strategy: Who is asked.
    """
    if len(problem.forecast) < 2:
        return strategy(problem)
    known = prices(problem)
    answer, *others = _answers(problem, strategy)
    candidates = _distinct([answer.segments, *_running(known), *(each.segments for each in others)])
    first = best_first(known, candidates)
    return answer if first == 0 else with_load(known, candidates[first])


def best_first(known: Prices, candidates: Sequence[Segments]) -> int:
    """Return the number of the candidate that the best way through the forecast begins with.

    Args:
        known: Prices of a problem with a forecast.
        candidates: At least one; each must fit on the fleet. Of equals, the first is taken.
    """
    forecast = known.problem.forecast
    play = stage(forecast, MOST_JUDGED)
    scenes = [_Scene.present(known), *(_Scene.later(known, each) for each in play.scenes[1:])]
    worths = [[scene.worth(each) for each in candidates] for scene in scenes]
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
class _Scene:
    """A period as it would be seen if it were the present.

    Attributes:
        known: Its problem and prices; nothing costs a price in it.
        pools: What each pool of the present is in it.
    """

    known: Prices
    pools: Mapping[Pool, Pool]

    @classmethod
    def present(cls, known: Prices) -> _Scene:
        return cls(replace(known, loading_s={}), {pool: pool for pool in known.problem.pools})

    @classmethod
    def later(cls, known: Prices, period: Period) -> _Scene:
        pools = _pools(known.problem, period)
        seen = _seen(replace(known.problem, catalog=()), pools)
        return cls(replace(known, problem=seen, loading_s={}), pools)

    def worth(self, segments: Segments) -> Worth:
        """Return what an hour of `segments` is worth, with the load that suits them best."""
        moved = {_moved(kind, self.pools): count for kind, count in segments.items()}
        found = score(self.known.problem, with_load(self.known, moved), self.known)
        paid = replace(found, objective=found.objective + found.reconfiguration)
        return paid.worth


def _cost(known: Prices, segments: Segments, zero: Worth) -> Worth:
    """Return the price of getting to `segments` as a worth: less points, all else equal."""
    loading_s = longest_loading_s(known, segments)
    points = reconfiguration_points(known, segments) + known.loading_points * loading_s
    return (*zero[:POINTS], -points, *zero[POINTS + 1 :])


def _after(known: Prices, segments: Segments) -> Prices:
    """Return the prices once `segments` run, on their slices and no others."""
    running: Counter[Row] = Counter()
    existing: Counter[tuple[Pool, str]] = Counter()
    for kind, count in segments.items():
        running[row(kind)] += count
        existing[kind.pool, kind.profile] += count
    return replace(known, running=running, existing=existing)


def _answers(problem: Problem, strategy: Strategy) -> Iterator[Configuration]:
    """Yield the strategy's answers, in terms of the present's pools; the present's own first."""
    questions = list(_questions(problem))
    limit_s = problem.time_limit_s / 2 if questions else problem.time_limit_s
    yield strategy(replace(problem, time_limit_s=limit_s))
    for asked, pools in questions:
        present = {there: here for here, there in pools.items()}
        limited = replace(asked, time_limit_s=problem.time_limit_s / 2 / len(questions))
        found = strategy(limited)
        moved = {_moved(kind, present): count for kind, count in found.segments.items()}
        yield replace(found, segments=moved, load_rps={})


def _questions(problem: Problem) -> Iterator[tuple[Problem, Mapping[Pool, Pool]]]:
    """Yield each scene as a problem, at prices that all its hours pay; the pools it happens in.

    The present is asked about again only where prices make a difference.
    """
    for number, scene in enumerate(stage(problem.forecast, MOST_QUESTIONS).scenes):
        objective = _spread(problem.objective, scene.length_s / S_PER_H)
        pools = _pools(problem, scene) if number else {pool: pool for pool in problem.pools}
        if number or objective != problem.objective:
            yield replace(_seen(problem, pools), objective=objective), pools


def _spread(objective: Objective, hours: float) -> Objective:
    """Return the objective with prices that are paid once for so many hours."""
    infadapter = objective.infadapter
    loading = infadapter.model_copy(update={"loading": infadapter.loading / hours})
    return objective.model_copy(
        update={
            "switch_price": objective.switch_price / hours,
            "layout_price": objective.layout_price / hours,
            "infadapter": loading,
        }
    )


def _running(known: Prices) -> Iterator[Segments]:
    """Yield what runs and can serve, where there is such, and it fits on the fleet."""
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


def _seen(problem: Problem, pools: Mapping[Pool, Pool]) -> Problem:
    """Return the problem as it would be posed in other pools, with what runs now."""
    return replace(
        problem,
        gpus=tuple(replace(gpu, pool=pools[gpu.pool]) for gpu in problem.gpus),
        catalog=tuple(_moved(kind, pools) for kind in problem.catalog),
        forecast=(),
    )


def _pools(problem: Problem, period: Period) -> dict[Pool, Pool]:
    there = period.intensity_gco2e_per_kwh
    return {
        pool: replace(
            pool,
            intensity_gco2e_per_kwh=there.get(pool.zone, pool.intensity_gco2e_per_kwh),
        )
        for pool in problem.pools
    }


def _moved(kind: SegmentKind, pools: Mapping[Pool, Pool]) -> SegmentKind:
    return replace(kind, pool=pools.get(kind.pool, kind.pool))

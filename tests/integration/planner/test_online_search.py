"""The online search, in a world whose profiles are wrong."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import cycle

import pytest

from benchmarks.clover.live import Factor, World
from services.kit.config import Objective
from services.kit.errors import InvalidArgument
from services.planner.core.model import Configuration, Problem, SegmentKind
from services.planner.core.online_search.profile_corrections import Beliefs, Cell, Evidence
from services.planner.core.online_search.search import PATIENCE, OnlineSearch
from services.planner.core.placement.placement import place
from services.planner.core.problem.catalog import in_time
from services.planner.core.problem.score import score
from services.planner.core.strategies.annealing import Schedule, search
from services.planner.core.strategies.base import base
from services.planner.core.strategies.candidates import breaks_sla
from services.planner.core.strategies.exact import exact
from tests.support.planner import fleets

NEAR_POINTS = 0.1
NOISE = 1e-3

WORLDS: Mapping[str, Factor] = {
    "as profiled": lambda _variant, _slice: (1.0, 1.0),
    "small slices 30 % slower": lambda _variant, name: (1.3, 1.3) if name < "2" else (1.0, 1.0),
    "everything 15 % slower": lambda _variant, _slice: (1.15, 1.15),
    "one variant dearer": lambda variant, _slice: (1.0, 1.5 if variant == "v2" else 1.0),
    "whole GPUs thriftier": lambda _variant, name: (1.0, 0.7 if name[0] == "7" else 1.0),
}


def quick(problem: Problem) -> Iterator[Mapping[SegmentKind, int]]:
    """Proposals: the exact strategy's answer, and a short annealing."""
    yield exact(problem).segments
    for met in search(problem, Schedule(patience=20, walks=1, evaluations=60)):
        yield met.configuration.segments


def started(weight: float) -> tuple[Problem, Configuration]:
    """Five GPUs on which BASE runs."""
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 5)),
        [fleets.model(demand_rps=800.0)],
        Objective(carbon_weight=weight),
        batch_sizes=(1, 4, 16),
        max_processes=1,
    )
    ids, first = iter(range(100)), base(problem)
    return replace(problem, running=place(problem, first, lambda: f"s{next(ids)}")), first


def run(problem: Problem, first: Configuration, factor: Factor) -> tuple[OnlineSearch, list[bool]]:
    """Search to the end; return for each evaluation whether it was believed to break the SLA."""
    world = World.behind(problem, factor)
    steps = OnlineSearch(problem, propose=quick)
    steps.learn(world.measure(first))
    believed: list[bool] = []
    while (proposal := steps.propose()) is not None:
        believed.append(breaks_sla(score(problem, proposal), problem, share=NOISE))
        steps.learn(world.measure(proposal))
    return steps, believed


@pytest.mark.parametrize(("name", "weight"), [*zip(WORLDS, cycle((0.1, 0.5)), strict=False)])
def test_it_ends_near_the_true_optimum_and_never_proposes_what_it_believes_to_fail(
    name: str, weight: float
) -> None:
    """In a handful of evaluations. The optimum is what `exact` finds where it knows the truth."""
    problem, first = started(weight)
    world = World.behind(problem, WORLDS[name])
    steps, believed = run(problem, first, WORLDS[name])
    truth = world.known()
    (model,) = truth.models
    kept = tuple(kind for kind in truth.catalog if in_time(truth.objective, model, kind))
    best = score(truth, exact(replace(truth, catalog=kept)))
    assert not any(believed)
    assert 1 <= len(believed) <= 12
    assert steps.best is not None
    found = world.score(steps.best)
    assert not breaks_sla(found, truth, share=NOISE)
    assert best.objective - found.objective <= NEAR_POINTS


def test_trusting_wrong_profiles_would_have_broken_the_sla() -> None:
    """The reason for the search: the plan from the profile refuses load in the true world."""
    problem, _ = started(0.1)
    world = World.behind(problem, lambda _variant, _slice: (1.5, 1.5))
    assert breaks_sla(world.score(exact(problem)), problem, share=NOISE)


def test_what_was_learned_saves_the_next_search_its_evaluations() -> None:
    problem, first = started(0.1)
    factor = WORLDS["small slices 30 % slower"]
    steps, believed = run(problem, first, factor)
    world, again = World.behind(problem, factor), 0
    later = OnlineSearch(problem, steps.beliefs, propose=quick)
    assert steps.best is not None
    later.learn(world.measure(steps.best))
    while (proposal := later.propose()) is not None:
        again += 1
        later.learn(world.measure(proposal))
    assert again < len(believed)


def test_it_ends_after_so_many_evaluations_without_a_better_one() -> None:
    """Each measurement is the same, and worse than promised."""
    problem, first = started(0.1)
    world = World.behind(problem, lambda _variant, _slice: (1.0, 1.0))
    steps = OnlineSearch(problem, propose=quick)
    steps.learn(world.measure(first))
    evaluations = 0
    while (configuration := steps.propose()) is not None:
        evaluations += 1
        late = world.measure(configuration)
        steps.learn(replace(late, latency_s={"vision": 9.0}))
    assert 1 <= evaluations <= PATIENCE
    assert steps.best is not None
    assert {kind.variant for kind in steps.best.segments} == {"v3"}


def test_nothing_is_proposed_where_nothing_is_believed_to_keep_the_sla() -> None:
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 1)), [fleets.model(demand_rps=1e6)], batch_sizes=(1, 4)
    )
    steps = OnlineSearch(problem, propose=quick)
    assert steps.propose() is None
    assert steps.best is None


def test_a_measurement_of_an_unknown_kind_is_refused() -> None:
    problem, first = started(0.1)
    world = World.behind(problem, WORLDS["as profiled"])
    measurement = world.measure(first)
    strange = {replace(kind, variant="v9"): seen for kind, seen in measurement.observed.items()}
    with pytest.raises(InvalidArgument, match="v9"):
        OnlineSearch(problem).learn(replace(measurement, observed=strange))


def test_beliefs_are_plain_values() -> None:
    """Beliefs can be stored: those that are read back correct the same."""
    problem, first = started(0.1)
    beliefs = run(problem, first, WORLDS["everything 15 % slower"])[0].beliefs
    plain = [(*cell, *asdict(evidence).values()) for cell, evidence in beliefs.evidence.items()]
    assert all(isinstance(value, str | float) for row in plain for value in row)
    back = Beliefs(
        {Cell(*row[:4]): Evidence(*row[4:]) for row in plain},
        dict(beliefs.waits),
    )
    cells = [Cell.of(kind) for kind in problem.catalog]
    assert back.corrections(cells) == beliefs.corrections(cells)

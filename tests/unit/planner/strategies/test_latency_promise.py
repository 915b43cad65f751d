"""The latency objective as part of the problem, for every strategy (CLOVER, SC'23, Eq. 5)."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from services.kit.config import Objective
from services.planner.core.model import Problem
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.score import score
from services.planner.core.problem.shortfall import shortfalls, unservable
from services.planner.core.strategies import REGISTRY
from services.planner.core.strategies.exact_program import Formulation
from tests.support.planner import fleets


def busy(gpus: int = 1, demand_rps: float = 52.0) -> Problem:
    """One segment would be used half, and p95 then twice as long as the objective."""
    model = fleets.model(gmacs=[5.7], accuracies=[80.0], demand_rps=demand_rps, slo_s=0.0267)
    return fleets.problem(
        fleets.fleet((fleets.pool(), gpus)),
        [model],
        Objective(latency_rule="percentile"),
        batch_sizes=(1,),
        max_processes=1,
    )


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_a_plan_keeps_the_percentile_or_says_that_it_does_not(name: str) -> None:
    """Two small slices do it at no cost; BASE has no choice, and is marked with both latencies."""
    problem = busy()
    found = score(problem, REGISTRY[name](problem))
    late = found.latency_s["vision"] > problem.models[0].slo_latency_s
    assert late == (name == "base")
    assert bool(shortfalls(problem, found)) == late
    if late:
        assert "ms is predicted, 26.7 ms is the objective" in str(shortfalls(problem, found))


@pytest.mark.parametrize("name", ["exact", "annealing"])
def test_free_slices_that_cost_nothing_are_used(name: str) -> None:
    """A GPU that is powered anyway is cut until it is full; its segments are equally full."""
    problem = busy()
    found = REGISTRY[name](problem)
    assert sum(found.segments.values()) >= 4  # 1g.10gb takes two slices of memory
    loads = {k: found.load_rps[k] / n / k.throughput_rps for k, n in found.segments.items()}
    assert max(loads.values()) == pytest.approx(min(loads.values()))


def test_only_batches_count_where_the_objective_says_so() -> None:
    problem = busy()
    problem = replace(problem, objective=Objective(latency_rule="batch"))
    found = Formulation(prices(problem), problem.catalog).solve(time_limit_s=5.0, tolerance=0.0)
    assert found is not None
    assert sum(found.segments.values()) == 1
    assert not shortfalls(problem, score(problem, found))


@pytest.mark.parametrize("name", ["exact", "annealing", "parvagpu"])
@pytest.mark.parametrize("demand_rps", [1e-7, 1e-4])
def test_a_tiny_rate_gets_a_segment(name: str, demand_rps: float) -> None:
    problem = busy(demand_rps=demand_rps)
    found = REGISTRY[name](problem)
    assert sum(found.segments.values()) >= 1
    assert sum(found.load_rps.values()) == pytest.approx(demand_rps, rel=1e-3)
    assert not shortfalls(problem, score(problem, found))


def test_annealing_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only the search moves: far fewer candidates than without a limit."""
    problem, seconds = busy(gpus=4, demand_rps=400.0), iter(range(10_000))
    judged: list[Problem] = []

    def counted(judge: object, segments: object) -> object:
        judged.append(problem)
        return call(judge, segments)  # type: ignore[arg-type]

    from services.planner.core.strategies.candidates import Judge  # noqa: PLC0415

    call = Judge.__call__
    monkeypatch.setattr(Judge, "__call__", counted)
    monkeypatch.setattr(time, "thread_time", lambda: float(next(seconds)))
    REGISTRY["annealing"](replace(problem, time_limit_s=5.0))
    assert len(judged) <= 8


def test_an_objective_that_no_variant_can_meet_is_named_with_the_fastest_time() -> None:
    hopeless, fine = fleets.model("hopeless", slo_s=0.001), fleets.model("fine", slo_s=1.0)
    found = dict(unservable([hopeless, fine], {fleets.gpu_type(): 1}, Objective(), (1, 8)))
    assert found.keys() == {("hopeless", "slo", "latency_s")}
    (why,) = found.values()
    assert "no variant can meet 1 ms: the fastest, v0, takes 1.157 ms per batch" in why

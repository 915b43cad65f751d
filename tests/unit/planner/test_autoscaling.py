"""Requests to a cluster autoscaler: which nodes may go, and how many GPUs are missing."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.autoscaling import empty_nodes, wanted_gpus
from services.planner.core.model import Problem
from services.planner.core.placement.placement import place
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY
from tests.support.examples import examples
from tests.support.planner.fleets import fleet, model, pool, problem

exact = REGISTRY["exact"]
A100, T4 = pool(), pool("t4")


def posed(demand_rps: float, a100s: int, t4s: int = 0, slo_s: float = 0.5) -> Problem:
    """EfficientNet B1 and B3; a T4 serves about a tenth of what an A100 does."""
    pools = [(kind, count) for kind, count in ((A100, a100s), (T4, t4s)) if count]
    tasks = [
        model(name, gmacs=(0.7, 1.9), accuracies=(78.4, 81.5), demand_rps=rps, slo_s=slo_s)
        for name, rps in (("small", demand_rps / 4), ("large", demand_rps))
    ]
    return problem(fleet(*pools), tasks, batch_sizes=(8,), max_processes=1, time_limit_s=2.0)


def test_a_fleet_that_serves_all_wants_nothing() -> None:
    enough = posed(100.0, 2)

    assert wanted_gpus(enough, score(enough, exact(enough))) == {}


@examples(0.06)
@given(st.floats(3_000, 60_000), st.integers(1, 2))
def test_as_many_gpus_as_are_wanted_serve_all(demand_rps: float, a100s: int) -> None:
    """Where at least two are wanted, half of them do not."""
    short = posed(demand_rps, a100s)
    judged = score(short, exact(short))
    wanted = wanted_gpus(short, judged)

    assert bool(wanted) == (sum(judged.unserved_rps.values()) > 1e-6)
    for count in wanted.values():
        assert unserved_rps(short, a100s + count) < 1e-6 * demand_rps
        if count > 1:
            assert unserved_rps(short, a100s + count // 2) > 0


def unserved_rps(short: Problem, gpus: int) -> float:
    larger = replace(short, gpus=fleet((A100, gpus)))
    return sum(score(larger, exact(larger)).unserved_rps.values())


def test_types_are_alternatives_and_one_that_cannot_serve_is_left_out() -> None:
    """Where one of the models does not run on T4s, no number of them helps."""
    both = posed(20_000.0, 1, 1)
    wanted = wanted_gpus(both, score(both, exact(both)))
    kinds = (kind for kind in both.catalog if kind.pool == A100 or kind.model != "large")
    large = replace(both, catalog=tuple(kinds))
    only = wanted_gpus(large, score(large, exact(large)))

    assert wanted["t4"] > wanted["a100-40gb"] > 0
    assert only.keys() == {"a100-40gb"}


def test_a_model_that_nothing_serves_wants_no_gpus() -> None:
    hopeless = posed(100.0, 1, slo_s=1e-6)

    assert wanted_gpus(hopeless, score(hopeless, exact(hopeless))) == {}


def test_a_node_is_empty_where_nothing_is_to_run_on_any_of_its_gpus() -> None:
    light = posed(50.0, 1, 3)
    numbers = iter(range(100))
    target = place(light, exact(light), lambda: f"s-{next(numbers)}")
    used = {segment.node for segment in target}

    assert set(empty_nodes(light.gpus, target)) == {"node-0", "node-1"} - used
    assert empty_nodes(light.gpus, ()) == ("node-0", "node-1")

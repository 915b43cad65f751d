"""Plans that survive the loss of a GPU or node, against a program of its own."""

from dataclasses import replace
from itertools import count

import pytest

from services.kit.config import Objective
from services.planner.core.model import Configuration, Gpu, Model, Problem, Segment
from services.planner.core.placement.placement import place
from services.planner.core.placement.redundancy import missing_redundancy, redundancy
from services.planner.core.problem.pricing import gpcs
from services.planner.core.problem.score import score
from services.planner.core.problem.shortfall import shortfalls
from services.planner.core.spares import reinforced
from services.planner.core.strategies.base import base
from services.planner.core.strategies.exact import exact
from tests.support.examples import trials
from tests.support.planner import fleets
from tests.support.planner.redundant_plans import (
    plan_exists,
    random_problem,
    several_gpus_plan_exists,
    several_gpus_problem,
)


def planned(problem: Problem) -> tuple[Configuration, tuple[Segment, ...]]:
    """Return the exact strategy's plan."""
    new_id = map("s-{}".format, count()).__next__
    configuration = exact(problem)
    target = place(problem, configuration, new_id)
    return reinforced(problem, configuration, target, new_id, free=True)


def lacks(problem: Problem) -> list[str]:
    """Return the promises that a plan does not keep."""
    configuration, target = planned(problem)
    found = (
        *missing_redundancy(problem, target),
        *shortfalls(problem, score(problem, configuration)),
    )
    return [each.sentence for each in found if "stay unused" not in each.sentence]


@pytest.mark.parametrize("seed", range(trials(0.08)))
def test_no_promise_is_broken_where_a_plan_keeps_all(seed: int) -> None:
    """Fleets of two to six GPUs, one or two types, up to three models, light load to overload."""
    problem = replace(random_problem(seed), time_limit_s=2.0)
    found = lacks(problem)
    if found:
        assert not plan_exists(problem), found


@pytest.mark.parametrize("seed", [102, 110, 126, 210, 263, 598, *range(trials(0.06))])
def test_no_promise_is_broken_by_variants_on_several_gpus_either(seed: int) -> None:
    """Two or three nodes of up to four GPUs, variants on one, two and four of them."""
    problem = several_gpus_problem(seed)
    found = lacks(problem) if problem.catalog else []
    if found:
        assert not several_gpus_plan_exists(problem), found


def test_what_fits_is_served_where_promises_cannot_be_kept() -> None:
    """Two models on two GPUs each, of which the nodes have room for one segment."""
    configuration, target = planned(several_gpus_problem(41))

    assert target
    assert sum(configuration.load_rps.values()) > 0


def apart(name: str, demand_rps: float, **more: object) -> Model:
    model = fleets.model(name, gmacs=(10.0,), accuracies=(80.0,), demand_rps=demand_rps)
    return replace(model, **more)  # type: ignore[arg-type]


def test_two_models_with_two_replicas_each_share_both_gpus() -> None:
    """m0 m1 / m0 m1 costs nothing, where both segments of each on one GPU break the promise."""
    models = [apart(name, 900.0, spread="gpu", replicas_min=2) for name in ("m0", "m1")]
    problem = fleets.problem(fleets.fleet((fleets.pool(), 2)), models)
    _, target = planned(problem)

    for gpu in problem.gpus:
        assert {each.kind.model for each in target if each.gpu_uuid == gpu.uuid} == {"m0", "m1"}


def test_smaller_variants_are_chosen_where_large_ones_leave_no_room_for_a_loss() -> None:
    """All of the load survives the loss of either GPU, although that costs accuracy."""
    model = replace(fleets.model(demand_rps=1500.0, slo_s=0.2), survive=1.0)
    problem = fleets.problem(fleets.fleet((fleets.pool(), 2)), [model], Objective(carbon_weight=0))

    assert not lacks(problem)


def test_a_spare_is_no_larger_than_needed() -> None:
    """Beside BASE's whole GPU, which nothing shares, the smallest slice of a second one."""
    small = replace(fleets.model(demand_rps=5.0, gmacs=(1.0,), accuracies=(80.0,)), survive=1.0)
    problem = fleets.problem(fleets.fleet((fleets.pool(), 1)) + other_node(), [small])
    new_id = map("s-{}".format, count()).__next__
    one = Configuration({next(iter(base(problem).segments)): 1}, {})
    found, target = reinforced(problem, one, place(problem, one, new_id), new_id, free=False)
    added = [kind for kind in found.segments if kind not in one.segments]

    assert not list(missing_redundancy(problem, target))
    assert [gpcs(kind) * found.segments[kind] for kind in added] == [1]


def other_node() -> tuple[Gpu, ...]:
    return (Gpu("GPU-other", "node-other", fleets.pool()),)


def test_after_a_loss_the_percentile_is_kept_too() -> None:
    """Not only a utilisation below the highest: at p99 few segments may be given less."""
    model = replace(fleets.model(demand_rps=900.0, slo_s=0.05), survive=1.0, slo_percentile=99.0)
    problem = fleets.problem(fleets.fleet((fleets.pool(), 4)), [model])
    _, target = planned(problem)
    lost = redundancy(problem, model, target).lost
    left = [each for each in target if each.gpu_uuid != lost]
    counts = {each.kind: sum(other.kind == each.kind for other in left) for each in left}
    total_rps = sum(known_rps(kind.throughput_rps, n) for kind, n in counts.items())
    after = Configuration(
        counts,
        {k: 900.0 * known_rps(k.throughput_rps, n) / total_rps for k, n in counts.items()},
    )

    assert score(problem, after).latency_s["vision"] <= 0.05


def known_rps(throughput_rps: float, segments: int) -> float:
    return throughput_rps * segments


@pytest.mark.parametrize("seed", range(trials(0.06)))
def test_every_segment_of_a_model_that_must_survive_has_some_load(seed: int) -> None:
    problem = replace(random_problem(seed), time_limit_s=1.0)
    _, target = planned(problem)
    surviving = {model.name for model in problem.models if model.survive}
    assert all(each.share > 0 for each in target if each.kind.model in surviving)

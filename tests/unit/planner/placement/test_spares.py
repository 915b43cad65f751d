"""Spare segments: what is left of a model after the loss of a GPU or node."""

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.condition.v1.records import ConditionKind
from services.kit.config import Spread
from services.planner.core.decide import Decision, Snapshot, decide
from services.planner.core.explain.explain import DecidedPlan, explain
from services.planner.core.model import Gpu, Model
from services.planner.core.strategies import REGISTRY
from tests.support.examples import examples
from tests.support.planner.decisions import MODEL, POOL, SETTINGS, decided, done, snapshot

QUICK = SETTINGS.model_copy(update={"batch_sizes": (1, 4), "max_processes": 1, "time_limit_s": 1.0})


def fleet(gpus: int, per_node: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(f"GPU-{n}", f"node-{n // per_node}", POOL) for n in range(gpus))


def wanting(model: Model, gpus: tuple[Gpu, ...], strategy: str = "exact") -> Snapshot:
    return replace(snapshot(strategy), gpus=gpus, models=(model,))


def decided_quickly(now: Snapshot) -> Decision:
    numbers = count(1)
    return decide(now, QUICK, lambda: f"s-{next(numbers)}")


def left_rps(decision: Decision, gone: str) -> float:
    """Return what segments can take, at the utilisation that plans allow, without a GPU or node."""
    return sum(
        decision.problem.objective.max_utilisation * each.kind.throughput_rps
        for each in decision.target
        if gone not in (each.gpu_uuid, each.node)
    )


def redundancy_missing(decision: Decision) -> list[str]:
    return [
        each.setting
        for each in decision.conditions
        if each.kind is ConditionKind.REDUNDANCY_MISSING
    ]


@examples(0.2)
@given(
    strategy=st.sampled_from(sorted(REGISTRY.keys() - {"annealing", "oracle", "random"})),
    gpus=st.integers(1, 6),
    per_node=st.integers(1, 3),
    demand_rps=st.floats(1, 600),
    survive=st.floats(0.1, 1),
    spread=st.sampled_from([None, "gpu", "node"]),
)
def test_after_any_one_loss_the_rest_serves_what_must_survive_unless_it_is_said(
    *,
    strategy: str,
    gpus: int,
    per_node: int,
    demand_rps: float,
    survive: float,
    spread: Spread | None,
) -> None:
    """Whatever the strategy; the shares still sum to 1."""
    model = replace(MODEL, demand_rps=demand_rps, survive=survive, spread=spread)
    decision = decided_quickly(wanting(model, fleet(gpus, per_node), strategy))

    if decision.target:
        assert sum(each.share for each in decision.target) == pytest.approx(1.0)
    if redundancy_missing(decision):
        return
    for gpu in decision.problem.gpus:
        gone = gpu.node if spread == "node" else gpu.uuid
        left = left_rps(decision, gone)
        assert left >= survive * demand_rps * (1 - 1e-4)


@pytest.mark.parametrize("strategy", sorted(REGISTRY))
def test_every_strategy_leaves_a_model_that_must_survive_on_two_nodes(strategy: str) -> None:
    model = replace(MODEL, survive=1.0, spread="node")
    decision = decided_quickly(wanting(model, fleet(4, 2), strategy))

    assert redundancy_missing(decision) == []
    assert {each.node for each in decision.target} == {"node-0", "node-1"}


def test_replicas_are_as_many_as_wanted_on_as_many_gpus() -> None:
    together = decided(wanting(replace(MODEL, replicas_min=3), fleet(3, 3)))
    apart = decided(wanting(replace(MODEL, replicas_min=3, spread="gpu"), fleet(3, 3)))

    assert len(together.target) >= 3
    assert len({each.gpu_uuid for each in apart.target}) == 3


def test_where_there_is_no_room_the_plan_is_degraded_and_names_the_setting() -> None:
    decision = decided(wanting(replace(MODEL, survive=0.5), fleet(1, 1)))
    few = decided(wanting(replace(MODEL, replicas_min=100), fleet(1, 1)))

    assert redundancy_missing(decision) == ["models.digits.survive"]
    assert "digits: the loss of one gpu leaves 0.0 of 30.0 req/s that must survive" in (
        decision.degraded
    )
    assert redundancy_missing(few) == ["models.digits.replicas_min"]


def test_spares_that_run_stay_where_they_are() -> None:
    """A second decision from the same figures changes nothing."""
    before = wanting(replace(MODEL, survive=1.0, spread="node"), fleet(4, 2))
    first = decided(before)
    second = decided(done(before, first), "t")

    assert second.rollout.actions == 0
    assert {each.segment_id for each in second.target} == {each.segment_id for each in first.target}


def test_an_explanation_says_what_survives() -> None:
    decision = decided(wanting(replace(MODEL, survive=0.5), fleet(2, 1)))
    found = explain(DecidedPlan(1, decision.problem, decision.configuration, 0.1, decision.target))
    (sentence,) = [each.sentence for each in found.bindings if each.constraint == "survive"]

    assert sentence.startswith(
        "digits: 30.0 of 60.0 req/s must survive the loss of any one gpu; the worst, of GPU-"
    )


def test_without_such_wishes_nothing_is_added() -> None:
    """The configuration keeps its proven gap."""
    assert decided(wanting(MODEL, fleet(4, 2))).configuration.gap is not None

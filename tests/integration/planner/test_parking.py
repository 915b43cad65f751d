"""GPUs that a plan leaves empty, and the power it would save to park them: on mixed GPUs."""

from collections import Counter
from itertools import count

import pytest

from services.kit.config import Deployment, Objective
from services.kit.config.loader import load
from services.planner.adapters.model_loader import load_models
from services.planner.core.decide import Decision, Snapshot, decide
from services.planner.core.model import Gpu, Pool
from services.planner.core.plan_builder import build_plan
from services.simulator.device import gpu_type
from tests.support.paths import ROOT
from tests.support.planner.stored_plans import NOW

EXAMPLE = ROOT / "examples/mixed/cinquefoil.yaml"
T4, A100 = gpu_type("t4"), gpu_type("a100-40gb")


@pytest.fixture(scope="module")
def mixed() -> Deployment:
    return load(EXAMPLE)


def planned(mixed: Deployment, strategy: str, objective: Objective) -> tuple[Snapshot, Decision]:
    gpus = tuple(
        Gpu(f"{name}/{index}", name, Pool(gpu_type(kind), node.zone, node.pue, 600.0))
        for name, node in mixed.nodes.items()
        for index, kind in enumerate(node.simulated or ())
    )
    numbers = count()
    seen = Snapshot(gpus, load_models(mixed), (), {}, objective, strategy=strategy)
    return seen, decide(seen, mixed.planner, lambda: f"s-{next(numbers)}")


def test_the_example_gives_each_model_both_kinds_of_gpu(mixed: Deployment) -> None:
    """The example's two policies need both kinds to have a choice."""
    _, found = planned(mixed, mixed.planner.strategy, mixed.planner.objective)

    runs = Counter((each.kind.model, each.kind.pool.type.name) for each in found.target)
    assert set(runs.elements()) == {
        (model, kind) for model in mixed.models for kind in ("t4", "a100-40gb")
    }
    choices = [model.instance_choice for model in mixed.models.values()]
    assert choices == ["carbon_aware", "carbondis"]


@pytest.mark.parametrize(
    ("parks", "parked_w", "counted_w"),
    [
        (
            False,
            2 * T4.idle_power_w + A100.idle_power_w,
            2 * T4.idle_power_w + A100.idle_power_w + A100.context_power_w,
        ),
        (True, 2 * T4.idle_power_w + A100.idle_power_w, A100.context_power_w),
    ],
    ids=["powered", "parked"],
)
def test_a_plan_names_the_gpus_that_it_leaves_empty_and_their_idle_power(
    mixed: Deployment, *, parks: bool, parked_w: float, counted_w: float
) -> None:
    """The T4s; an A100, too, where empty GPUs draw nothing, which is then all that is counted."""
    seen, decision = planned(mixed, "exact", Objective(park_idle_gpus=parks))

    prediction = build_plan(decision, seen, reason="because", now=NOW).prediction

    used = {segment.gpu_uuid for segment in decision.target}
    assert set(prediction.parked_gpus) == {gpu.uuid for gpu in seen.gpus} - used
    assert {"edge-0/0", "edge-0/1"} <= set(prediction.parked_gpus)
    assert prediction.parked_power_w == parked_w
    nodes = {gpu.uuid: gpu.node for gpu in seen.gpus}
    assert set(prediction.empty_nodes) == {*nodes.values()} - {nodes[uuid] for uuid in used}
    assert "edge-0" in prediction.empty_nodes
    active_w = sum(kind.energy_j * rps for kind, rps in decision.configuration.load_rps.items())
    assert prediction.power_w == pytest.approx(active_w + counted_w)


def test_a_plan_that_uses_all_gpus_parks_none(mixed: Deployment) -> None:
    seen, decision = planned(mixed, "base", Objective())

    prediction = build_plan(decision, seen, reason="because", now=NOW).prediction

    assert (prediction.parked_gpus, prediction.parked_power_w) == ((), 0.0)

"""The present under other circumstances."""

import math
from dataclasses import replace

import pytest

from cinquefoil.planner.v1.records import AddedGpus, Goals, WhatIf
from services.kit import config
from services.kit.errors import InvalidArgument
from services.planner.core.model import Period
from services.planner.core.what_if import alter, of_another_world
from tests.support.planner.decisions import snapshot

NODES = {
    "node-a": config.Node(zone="Z", pue=1.2),
    "node-b": config.Node(zone="Y", pue=1.5),
}


def test_without_changes_it_is_the_present() -> None:
    assert alter(snapshot(), WhatIf(), NODES) == snapshot()


def test_every_change_is_taken_over() -> None:
    changes = WhatIf(
        demand_rps={"digits": 5.0},
        intensity_gco2e_per_kwh={"Z": 7.0, "Y": 9.0},
        carbon_weight=0.0,
        accuracy_floor=0.5,
        goals=Goals(clover=1.0, fewest_gpus=1.0),
        strategy="co2opt",
        without_gpus=("GPU-0",),
        added_gpus=(AddedGpus("a100-40gb", "node-b", 2),),
    )
    found = alter(snapshot(), changes, NODES)

    assert [gpu.uuid for gpu in found.gpus] == ["GPU-1", "added-1-1", "added-1-2"]
    assert [
        (gpu.pool.zone, gpu.pool.pue, gpu.pool.intensity_gco2e_per_kwh) for gpu in found.gpus
    ] == [
        ("Z", 1.2, 7.0),
        ("Y", 1.5, 9.0),
        ("Y", 1.5, 9.0),
    ]
    assert found.models[0].demand_rps == 5.0
    assert found.strategy == "co2opt"
    assert (found.objective.carbon_weight, found.objective.accuracy_floor) == (0.0, 0.5)
    assert (found.objective.goals.clover, found.objective.goals.fewest_gpus) == (1.0, 1.0)


def test_a_forecast_does_not_outlive_the_intensity_it_belongs_to() -> None:
    seen = replace(snapshot(), forecast=(Period(60.0, {"Z": 100.0}),))

    assert alter(seen, WhatIf(demand_rps={"digits": 5.0}), NODES).forecast == seen.forecast
    assert alter(seen, WhatIf(intensity_gco2e_per_kwh={"Z": 1.0}), NODES).forecast == ()


@pytest.mark.parametrize(
    ("changes", "another"),
    [
        (WhatIf(), False),
        (WhatIf(carbon_weight=0.0, accuracy_floor=0.0, goals=Goals(1.0), strategy="base"), False),
        (WhatIf(carbon_weight=0.0, demand_rps={"digits": 1.0}), True),
        (WhatIf(without_gpus=("GPU-0",)), True),
    ],
)
def test_only_wishes_are_of_this_world(changes: WhatIf, another: bool) -> None:
    """A plan for other wishes can be applied; one for another demand, grid or fleet cannot."""
    assert of_another_world(changes) == another


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (WhatIf(demand_rps={"letters": 1.0}), "what_if.demand_rps"),
        (WhatIf(demand_rps={"digits": -1.0}), "what_if.demand_rps[digits]"),
        (WhatIf(demand_rps={"digits": math.nan}), "what_if.demand_rps[digits]"),
        (WhatIf(intensity_gco2e_per_kwh={"X": 1.0}), "what_if.intensity_gco2e_per_kwh"),
        (WhatIf(intensity_gco2e_per_kwh={"Z": math.inf}), "what_if.intensity_gco2e_per_kwh[Z]"),
        (WhatIf(carbon_weight=2.0), "what_if.carbon_weight"),
        (WhatIf(accuracy_floor=-0.1), "what_if.accuracy_floor"),
        (WhatIf(goals=Goals()), "what_if.goals"),
        (WhatIf(strategy="magic"), "what_if.strategy"),
        (WhatIf(without_gpus=("GPU-9",)), "what_if.without_gpus"),
        (WhatIf(added_gpus=(AddedGpus("v100", "node-a", 1),)), "what_if.added_gpus[0].type"),
        (WhatIf(added_gpus=(AddedGpus("a100-40gb", "x", 1),)), "what_if.added_gpus[0].node"),
        (WhatIf(added_gpus=(AddedGpus("a100-40gb", "node-a", 0),)), "what_if.added_gpus[0].count"),
        (
            WhatIf(added_gpus=(AddedGpus("a100-40gb", "node-b", 1),)),
            "what_if.intensity_gco2e_per_kwh",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(changes: WhatIf, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        alter(snapshot(), changes, NODES)

    assert caught.value.field == field
    assert caught.value.message.startswith(field)


def test_a_mean_accuracy_gets_its_price_and_ends_with_a_weight_of_carbon() -> None:
    """A wished mean is priced by the planner; a wished weight, or no clover, replaces it."""
    priced = []

    def price_of(objective: config.Objective, strategy: str) -> dict[str, float]:
        priced.append((objective.accuracy_mean, strategy))
        return {"digits": 0.5} if objective.accuracy_mean else {}

    kept = alter(snapshot(), WhatIf(accuracy_mean=0.97), NODES, price_of)
    assert kept.objective.accuracy_mean == config.AccuracyMean(at_least=0.97)
    assert kept.accuracy_price == {"digits": 0.5}
    for wish in (
        WhatIf(carbon_weight=0.2),
        WhatIf(accuracy_mean=0.0),
        WhatIf(goals=Goals(fewest_gpus=1.0)),
    ):
        found = alter(kept, wish, NODES, price_of)
        assert found.objective.accuracy_mean is None
        assert not found.accuracy_price
    with pytest.raises(InvalidArgument, match="accuracy_mean"):
        alter(kept, WhatIf(accuracy_floor=0.99), NODES, price_of)

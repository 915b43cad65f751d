"""Reasons for which the planner re-plans."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from cinquefoil.planner.v1.records import Dispersion
from services.kit.config import Triggers
from services.planner.core.model import POISSON
from services.planner.core.service_level import Violation
from services.planner.core.triggers import (
    Kind,
    Observation,
    Trigger,
    cause,
    disturbance,
    loss,
    wait_s,
)

SETTINGS = Triggers(intensity_change=0.05, demand_change=0.2, min_interval_s=30)


def spec(segment_id: str = "s-1", variant: str = "small") -> SegmentSpec:
    return SegmentSpec(segment_id, "digits", variant, 8, 1, "GPU-a", Placement("1g.5gb", 0))


SEEN = Observation(
    intensity_gco2e_per_kwh={"US-CAL": 210.0},
    demand_rps={"digits": 60.0},
    gpus={("node-a", "GPU-a"): "a100-40gb"},
    segments=frozenset({spec()}),
    strategy="exact",
    carbon_weight=0.5,
    dispersion={"digits": POISSON},
)


def reason(now: Observation, before: Observation | None = SEEN) -> str:
    found = cause(before, now, SETTINGS)
    return "" if found is None else found.reason


def test_nothing_known_before_is_a_first_plan() -> None:
    """The first observation is a cause of its own."""
    found = cause(None, SEEN, SETTINGS)

    assert found is not None
    assert (found.kind, found.reason) == (Kind.FIRST, "first plan: 1 node, 1 GPU")


def test_no_change_is_no_cause() -> None:
    """The same observation twice starts no plan."""
    assert cause(SEEN, SEEN, SETTINGS) is None


def test_a_change_of_intensity_is_sent_as_the_contract_says() -> None:
    """The example of plan.proto, word for word."""
    now = replace(SEEN, intensity_gco2e_per_kwh={"US-CAL": 180.5})

    assert reason(now) == "carbon: US-CAL 210.0 -> 180.5 gCO2e/kWh (-14.0 %)"


@given(
    before=st.floats(1, 1000),
    change=st.floats(-0.99, 3).filter(lambda change: abs(abs(change) - 0.05) > 1e-6),
)
def test_intensity_causes_a_plan_exactly_above_the_threshold(before: float, change: float) -> None:
    """CLOVER replans at more than 5 %, up or down."""
    old = replace(SEEN, intensity_gco2e_per_kwh={"Z": before})
    new = replace(SEEN, intensity_gco2e_per_kwh={"Z": before * (1 + change)})

    assert (cause(old, new, SETTINGS) is not None) == (abs(change) > 0.05)


def test_intensity_that_leaves_zero_is_a_cause() -> None:
    """A relative threshold has no meaning at 0."""
    zero = replace(SEEN, intensity_gco2e_per_kwh={"Z": 0.0})
    some = replace(SEEN, intensity_gco2e_per_kwh={"Z": 10.0})

    assert reason(some, before=zero) == "carbon: Z 0.0 -> 10.0 gCO2e/kWh (new)"
    assert reason(zero, before=zero) == ""


@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        (replace(SEEN, demand_rps={"digits": 90.0}), "demand: digits 60.0 -> 90.0 req/s (+50.0 %)"),
        (replace(SEEN, gpus={}), "fleet: node-a 1 x a100-40gb -> away"),
        (
            replace(SEEN, gpus={**SEEN.gpus, ("node-b", "GPU-b"): "t4"}),
            "fleet: node-b away -> 1 x t4",
        ),
        (replace(SEEN, gpus={("node-a", "GPU-x"): "a100-40gb"}), "fleet: node-a has other GPUs"),
        (
            replace(SEEN, segments=frozenset()),
            "fleet: nothing runs, as after a restart; small on 1g.5gb@0 should",
        ),
        (
            replace(SEEN, segments=frozenset({spec("s-2", "b")})),
            (
                "fleet: small on 1g.5gb@0 should run and does not; "
                "fleet: b on 1g.5gb@0 runs and should not"
            ),
        ),
        (
            replace(SEEN, segments=SEEN.segments | {spec("s-2", "large"), spec("s-3")}),
            "fleet: large on 1g.5gb@0 and 1 more runs and should not",
        ),
        (
            replace(SEEN, late=(Violation("digits", 0.091, 0.05),)),
            "sla: 9.1 % of digits late (5.0 % may)",
        ),
        (
            replace(SEEN, inaccurate=(Violation("digits", 0.93, 0.95),)),
            "accuracy: digits at 93.0 % of its best variant, below the floor of 95.0 %",
        ),
        (
            replace(SEEN, dispersion={"digits": Dispersion(9.0, 9.0)}),
            (
                "demand: digits comes in larger bursts, "
                "dispersion 1.0 -> 9.0 at 1 s, 1.0 -> 9.0 at 10 s"
            ),
        ),
        (replace(SEEN, strategy="base"), "objective: strategy exact -> base"),
        (replace(SEEN, carbon_weight=0.1), "objective: carbon_weight 0.5 -> 0.1"),
    ],
)
def test_every_cause_says_what_changed(now: Observation, sentence: str) -> None:
    """A cause names the figure and its change."""
    assert reason(now) == sentence


def test_causes_that_come_together_are_reported_together_the_most_urgent_first() -> None:
    """One plan answers all of them."""
    now = replace(SEEN, intensity_gco2e_per_kwh={"US-CAL": 300.0}, carbon_weight=1.0)
    found = cause(SEEN, now, SETTINGS)

    assert found is not None
    assert found.kind is Kind.OBJECTIVE
    assert found.reason == (
        "objective: carbon_weight 0.5 -> 1; carbon: US-CAL 210.0 -> 300.0 gCO2e/kWh (+42.9 %)"
    )


def test_a_pinned_plan_is_disturbed_by_its_fleet_alone() -> None:
    """Load and intensity do not unpin a plan."""
    other = replace(
        SEEN,
        intensity_gco2e_per_kwh={"US-CAL": 900.0},
        demand_rps={"digits": 900.0},
        strategy="base",
        carbon_weight=0.1,
        late=(Violation("digits", 0.5, 0.05),),
    )
    broken = replace(other, segments=frozenset())
    found = disturbance(SEEN, broken, SETTINGS)

    assert disturbance(SEEN, other, SETTINGS) is None
    assert found is not None
    assert (found.kind, found.reason) == (
        Kind.FLEET,
        "fleet: nothing runs, as after a restart; small on 1g.5gb@0 should",
    )


@pytest.mark.parametrize("kind", Kind)
def test_only_first_plans_retries_and_objectives_skip_the_interval(kind: Kind) -> None:
    """Other causes wait until the interval since the last plan has passed."""
    exempt = {Kind.FIRST, Kind.RETRY, Kind.OBJECTIVE}

    assert wait_s(Trigger(kind, ""), 10.0, SETTINGS) == (0.0 if kind in exempt else 20.0)
    assert wait_s(Trigger(kind, ""), 31.0, SETTINGS) == 0.0
    assert wait_s(Trigger(kind, ""), math.inf, SETTINGS) == 0.0


FIXED = {
    "planner.objective.max_utilisation": "0.7",
    "models.digits.slo.latency_s": "0.4",
    "models.digits.variants.old": "1f2e",
    "models.digits.variants.small": "3d4c",
}


def test_other_settings_are_a_cause_that_names_them() -> None:
    """A changed deployment file is planned for, and the cause says why."""
    before = replace(SEEN, fixed=FIXED)
    now = {**FIXED, "models.digits.slo.latency_s": "0.2", "models.digits.variants.small": "0000"}
    del now["models.digits.variants.old"]
    found = cause(before, replace(SEEN, fixed=now), SETTINGS)

    assert found is not None
    assert (found.kind, wait_s(found, 0.0, SETTINGS)) == (Kind.OBJECTIVE, 0.0)
    assert found.reason == (
        "settings: models.digits.slo.latency_s 0.4 -> 0.2, models.digits.variants.small changed, "
        "models.digits.variants.old removed"
    )
    assert disturbance(before, replace(SEEN, fixed=now), SETTINGS) is None


def test_settings_of_a_plan_from_before_they_were_kept_are_no_cause() -> None:
    """An upgrade re-plans nothing."""
    assert cause(SEEN, replace(SEEN, fixed=FIXED), SETTINGS) is None


@pytest.mark.parametrize(
    ("now", "needed"),
    [
        ({"demand_rps": {"digits": 90.0}}, True),
        ({"demand_rps": {"digits": 30.0}}, False),
        ({"intensity_gco2e_per_kwh": {"US-CAL": 100.0}}, False),
        ({"gpus": {}}, True),
        ({"late": (Violation("digits", 0.5, 0.05),)}, True),
    ],
)
def test_plans_beyond_the_hours_budget_wait_unless_the_objective_needs_them(
    now: dict[str, Any], needed: bool
) -> None:
    """Until the first of the hour's plans is an hour old; without a limit there is no wait."""
    found = cause(SEEN, replace(SEEN, **now), SETTINGS)
    budget = SETTINGS.model_copy(update={"plans_per_hour": 2})

    assert found is not None
    assert found.needed is needed
    assert wait_s(found, 100.0, budget, [3000.0, 100.0]) == (0.0 if needed else 600.0)
    assert wait_s(found, 100.0, budget, [100.0]) == 0.0
    unlimited = SETTINGS.model_copy(update={"plans_per_hour": 0})
    assert wait_s(found, 100.0, unlimited, [3000.0, 100.0]) == 0.0


# ---- while reconfigurations are held back ------------------------------------------------------

MORE = {**SEEN.gpus, ("node-b", "GPU-b"): "t4"}


@pytest.mark.parametrize(
    "now",
    [
        replace(SEEN, demand_rps={"digits": 600.0}),
        replace(SEEN, intensity_gco2e_per_kwh={"US-CAL": 900.0}),
        replace(SEEN, strategy="base", carbon_weight=0.9),
        replace(SEEN, gpus=MORE),
        replace(SEEN, segments=SEEN.segments | {spec("s-2")}),
        replace(SEEN, late=(Violation("digits", 0.5, 0.05),)),
    ],
)
def test_nothing_but_lost_capacity_is_a_cause_while_plans_are_held_back(now: Observation) -> None:
    """An operator who holds plans back sees none but for lost GPUs."""
    assert loss(SEEN, now, SETTINGS, short=False) is None


@pytest.mark.parametrize(
    "now",
    [
        replace(SEEN, gpus={}),
        replace(SEEN, gpus={("node-a", "GPU-x"): "a100-40gb"}),
        replace(SEEN, segments=frozenset()),
        replace(SEEN, blocked=frozenset({("digits", "small")})),
    ],
)
def test_lost_capacity_is_a_cause_although_plans_are_held_back(now: Observation) -> None:
    """Requests without an instance matter more than the hold."""
    found = loss(SEEN, now, SETTINGS, short=False)

    assert found is not None
    assert found.kind is Kind.FLEET


def test_gpus_that_come_back_count_where_the_plan_falls_short() -> None:
    """Capacity that returns is used where some is missing."""
    found = loss(SEEN, replace(SEEN, gpus=MORE), SETTINGS, short=True)

    assert found is not None
    assert found.reason == "fleet: node-b away -> 1 x t4"


UNUSED = replace(SEEN, segments=frozenset())


@pytest.mark.parametrize(
    ("before", "now", "expected_s"),
    [
        pytest.param(SEEN, replace(SEEN, gpus={}), 0.0, id="a GPU in use is lost"),
        pytest.param(SEEN, UNUSED, 0.0, id="a segment is lost"),
        pytest.param(UNUSED, replace(UNUSED, gpus={}), 20.0, id="a free GPU is away"),
        pytest.param(
            UNUSED,
            replace(UNUSED, gpus={}, leaving=frozenset({("node-a", "GPU-a")})),
            0.0,
            id="its agent waits for the plan",
        ),
        pytest.param(SEEN, replace(SEEN, gpus=MORE), 20.0, id="a GPU is new"),
    ],
)
def test_a_loss_of_what_serves_is_urgent_and_a_gain_is_not(
    before: Observation, now: Observation, expected_s: float
) -> None:
    """Requests without an instance wait for no interval."""
    found = cause(before, now, SETTINGS)

    assert found is not None
    assert wait_s(found, 10.0, SETTINGS) == expected_s


def test_a_lower_power_budget_waits_for_nothing() -> None:
    """A lower budget is urgent, also for a pinned plan; a higher one only gains."""
    before = replace(SEEN, power_limit_w={"hall": 9000.0})
    lower = cause(before, replace(before, power_limit_w={"hall": 6000.0}), SETTINGS)
    assert lower is not None
    assert lower.urgent
    assert lower.reason == "power: hall 9 kW -> 6 kW"
    ended = replace(before, power_limit_w={})
    higher = cause(before, ended, SETTINGS)
    assert higher is not None
    assert (higher.urgent, higher.needed) == (False, False)
    assert disturbance(before, replace(before, power_limit_w={"hall": 1.0}), SETTINGS) is not None
    assert loss(before, ended, SETTINGS, short=False) is None

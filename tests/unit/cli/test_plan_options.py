"""Options of `cinquefoil plan`, and its rendering of a plan's numbers."""

import math
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cinquefoil.planner.v1 import plan_pb2
from services.cli.plan.deviation import documents, largest, measures
from services.cli.plan.render import listed
from services.cli.plan.what_if import added_gpus, numbers
from services.kit.errors import InvalidArgument

PLAN = plan_pb2.Plan(
    prediction=plan_pb2.Prediction(
        power_w=100.0,
        carbon_gco2e_per_h=20.0,
        latency_s={"digits": 0.1, "faces": 0.2},
        accuracy={"digits": 0.9, "faces": 0.8},
    ),
    outcome=plan_pb2.Outcome(
        active_s=1800.0,
        energy_j=110.0 * 1800,
        carbon_gco2e=5.0,
        latency_s={"digits": 0.11, "faces": 0.1},
        accuracy={"digits": 0.9},
    ),
)


# ---- options -----------------------------------------------------------------------------------


@given(
    st.dictionaries(st.text(min_size=1, max_size=9), st.floats(allow_nan=False), max_size=4),
)
def test_names_and_numbers_read_back_whatever_the_name(demand: dict[str, float]) -> None:
    """A name may hold "=": the number is what follows the last one."""
    texts = [f"{name}={value}" for name, value in demand.items()]

    assert numbers("--demand", "MODEL=RPS", texts) == demand


def test_a_node_may_hold_a_colon_and_a_type_may_not() -> None:
    added = added_gpus("a100-40gb:rack:7:2")

    assert (added.type, added.node, added.count) == ("a100-40gb", "rack:7", 2)


@pytest.mark.parametrize("text", ["", "a100", "a100:n", "a100::1", ":n:1", "a:n:-1", "a:n:1.5"])
def test_gpus_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--add-gpus: must be TYPE:NODE:COUNT"):
        added_gpus(text)


@pytest.mark.parametrize("text", ["", "=", "digits", "digits=", "=5", "digits=five"])
def test_a_demand_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--demand: must be MODEL=RPS"):
        numbers("--demand", "MODEL=RPS", [text])


# ---- predicted and observed --------------------------------------------------------------------


def test_deviations_are_relative_to_what_was_expected() -> None:
    found = {(each["name"], each["model"]): each["deviation"] for each in documents(PLAN)}

    assert found == {
        ("power_w", ""): pytest.approx(0.1),
        ("carbon_gco2e_per_h", ""): None,  # the grid was another
        ("latency_s", "digits"): pytest.approx(0.1),
        ("latency_s", "faces"): pytest.approx(-0.5),
        ("accuracy", "digits"): pytest.approx(0.0),
        ("accuracy", "faces"): None,
    }


def test_what_was_seen_under_another_load_or_grid_does_not_deviate() -> None:
    """Only like is compared with like; the words say what differs."""
    plan = plan_pb2.Plan.FromString(PLAN.SerializeToString())
    carbon = largest(measures(plan), "carbon_gco2e_per_h")
    plan.outcome.requests = 1 + plan.outcome.requests * 2
    power = largest(measures(plan), "power_w")

    assert carbon is not None
    assert (carbon.deviation, carbon.words) == (None, "other grid")
    assert power is not None
    assert (power.deviation, power.words) == (None, "other load")


def test_the_model_that_deviates_most_speaks_for_the_plan() -> None:
    found = largest(measures(PLAN), "latency_s")

    assert found is not None
    assert found.expected.key == "faces"


def test_a_plan_that_never_lived_was_not_seen() -> None:
    expected = plan_pb2.Plan(prediction=PLAN.prediction)

    assert all(each.seen is None for each in measures(expected))
    assert all(each.deviation is None for each in measures(expected))


@pytest.mark.parametrize("expected", [0.0, math.inf])
def test_nothing_deviates_from_zero_or_from_infinity(expected: float) -> None:
    plan = plan_pb2.Plan()
    plan.CopyFrom(PLAN)
    plan.prediction.latency_s["digits"] = expected
    found = {
        each.expected.key: each for each in measures(plan) if each.expected.path == "latency_s"
    }

    assert found["digits"].deviation is None
    assert found["digits"].seen is not None
    assert found["digits"].seen.value == 0.11


def test_a_list_says_once_under_what_other_circumstances_was_measured() -> None:
    """In words beside the reason: narrow columns would break them, and repeat them."""
    plan = plan_pb2.Plan.FromString(PLAN.SerializeToString())
    plan.outcome.requests = 1 + plan.outcome.requests * 2
    console = Console(width=80, record=True, file=StringIO())
    console.print(listed([plan]))
    text = console.export_text()

    assert text.count("another load") == 1
    assert "other load" not in text.replace("another load", "")

"""A saving splits into parts that add up to it; what follows the grid is measured from hours."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.planner.v1.plan_pb2 import Plan
from cinquefoil.planner.v1.planner_pb2 import AccountEntry
from services.cli.saving import TIME, WORDS, active_within, of_plan, split, words
from tests.support.examples import examples

START = datetime(2026, 3, 1, tzinfo=UTC)


def hour(
    at: int, requests: int, request_j: float, gco2e_per_j: float, base_j: float = 10.0
) -> AccountEntry:
    entry = AccountEntry(
        model="m",
        requests=requests,
        energy_j=requests * request_j,
        carbon_gco2e=requests * request_j * gco2e_per_j,
        base_energy_j=requests * base_j,
        base_carbon_gco2e=requests * base_j * gco2e_per_j,
    )
    entry.hour.FromDatetime(START + timedelta(hours=at))
    return entry


def plan(active_s: float, **saved: float) -> Plan:
    found = Plan(version=1)
    found.outcome.since.FromDatetime(START)
    found.outcome.active_s = active_s
    found.prediction.saved_gco2e_per_h.update(saved)
    return found


def test_a_standing_plan_owes_nothing_to_the_grid() -> None:
    """The same energy per request in clean and dirty hours: all is split as plans predicted."""
    entries = [hour(0, 100, 4.0, 1e-4), hour(1, 300, 4.0, 3e-4)]
    found = split(entries, [plan(3600.0, variant=3.0, slice=1.0, consolidation=9.0)])
    saved = sum(each.base_carbon_gco2e - each.carbon_gco2e for each in entries)
    assert found[TIME] == pytest.approx(0.0)
    assert found["variant"] == pytest.approx(0.75 * saved)
    assert found["slice"] == pytest.approx(0.25 * saved)
    assert "consolidation" not in found


def test_accurate_answers_in_clean_hours_are_owed_to_the_grid() -> None:
    """6 J an answer at 100 g and 2 J at 300 g, against 4 J always: a quarter less."""
    found = split([hour(0, 100, 6.0, 1.0), hour(1, 100, 2.0, 3.0)], [])
    assert found[TIME] == pytest.approx(100 * (4 + 12) - 100 * (6 + 6))


@examples(1)
@given(
    hours=st.lists(
        st.tuples(
            st.integers(0, 1000), st.floats(0.1, 9.0), st.floats(1e-6, 1e-3), st.floats(0.5, 20.0)
        ),
        min_size=1,
        max_size=8,
    ),
    saved=st.lists(st.tuples(st.floats(0, 7200), *[st.floats(-5, 50)] * 4), max_size=4),
)
def test_parts_add_up_to_the_saving(
    hours: list[tuple[int, float, float, float]],
    saved: list[tuple[float, float, float, float, float]],
) -> None:
    """Whatever the plans predicted, and where they predicted nothing."""
    entries = [hour(at, *figures) for at, figures in enumerate(hours)]
    plans = [
        plan(active_s, variant=v, slice=s, clocks=c, place=p) for active_s, v, s, c, p in saved
    ]
    whole = sum(each.base_carbon_gco2e - each.carbon_gco2e for each in entries)
    total = sum(each.base_carbon_gco2e for each in entries)
    assert sum(split(entries, plans).values()) == pytest.approx(whole, abs=1e-6 * (total + 1))


def test_a_plan_says_what_it_saves_and_one_of_an_older_planner_nothing() -> None:
    """Shares are of BASE's emissions; a lever without effect is left out."""
    found = plan(1.0, variant=30.0, slice=10.0, clocks=0.0, place=-2.0, consolidation=2.0)
    found.prediction.carbon_gco2e_per_h = 60.0
    assert of_plan(found.prediction) == (
        "saves 40.0 % of BASE: variants 30.0 %, slices 10.0 %, place -2.0 %, consolidation 2.0 %"
    )
    assert not of_plan(Plan().prediction)
    assert not words(dict.fromkeys(WORDS, 0.0), 1.0)


def test_plans_of_a_window_are_those_active_in_it() -> None:
    """One that ended before it, or began after it, is none of them."""
    active = plan(3600.0)
    hours = [START + timedelta(hours=at) for at in range(-2, 4)]
    assert active_within([active, Plan()], hours[2], hours[3]) == [active]
    assert not active_within([active], hours[0], hours[1])
    assert not active_within([active], hours[4], hours[5])

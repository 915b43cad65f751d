"""How much load the planner provides for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.demand import Demand


def test_what_is_configured_is_the_least() -> None:
    demand = Demand({"digits": 60.0})
    demand.observe("r-1", {"digits": 1}, 1.0)

    assert demand.rates_rps() == {"digits": 60.0}


@given(st.floats(70, 1e4), st.floats(0.2, 5))
def test_a_steady_load_is_seen_as_it_is_from_the_first_seconds_on(
    rate_rps: float, window_s: float
) -> None:
    demand = Demand({"digits": 1.0})
    for _ in range(10):
        demand.observe("r-1", {"digits": round(rate_rps * window_s)}, window_s)

    assert demand.rates_rps()["digits"] == pytest.approx(rate_rps, rel=0.06)


def test_routers_add_up_and_one_that_leaves_takes_its_load_along() -> None:
    demand = Demand({"digits": 10.0})
    demand.observe("r-1", {"digits": 400}, 4.0)
    demand.observe("r-2", {"digits": 200}, 4.0)
    assert demand.rates_rps()["digits"] == pytest.approx(150.0)
    demand.forget("r-1")

    assert demand.rates_rps()["digits"] == pytest.approx(50.0)


def test_a_burst_of_milliseconds_is_not_a_load() -> None:
    """Two arrivals in the first 2 ms would else read as 1000 req/s."""
    demand = Demand({"digits": 10.0})
    demand.observe("r-1", {"digits": 2}, 0.002)

    assert demand.rates_rps()["digits"] == 10.0


def test_load_that_ends_is_forgotten_within_minutes() -> None:
    demand = Demand({"digits": 1.0})
    demand.observe("r-1", {"digits": 1000}, 10.0)
    for _ in range(120):
        demand.observe("r-1", {"digits": 0}, 1.0)

    assert demand.rates_rps()["digits"] < 4.0


def test_unknown_models_and_empty_windows_say_nothing() -> None:
    demand = Demand({"digits": 1.0})
    demand.observe("r-1", {"other": 1000, "digits": 50}, 0.0)
    demand.observe("r-1", {"other": 1000}, 10.0)

    assert demand.rates_rps() == {"digits": 1.0}

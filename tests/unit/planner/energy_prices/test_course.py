"""Electricity prices in time: what stands for a missing one, and what is no price."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.energy_prices.course import (
    MOST_STEPS,
    EnergyPrices,
    Price,
    PriceStep,
    counted_eur_per_kwh,
    wrong_price,
)

HOUR, DAY = 3600.0, 86_400.0


def day(number: int, base: float = 0.1) -> list[PriceStep]:
    """Return the hours of a day, each a cent dearer than the one before."""
    begin = number * DAY
    return [PriceStep(begin + h * HOUR, begin + (h + 1) * HOUR, base + h / 100) for h in range(24)]


def test_a_missing_price_is_that_of_the_same_hour_of_an_earlier_day() -> None:
    """Up to a week back, with its age; then none is known."""
    prices = EnergyPrices()
    prices.put("DE", day(0), 0.0)
    at_s = 5.5 * HOUR
    assert prices.at("DE", at_s) == Price(pytest.approx(0.15))  # type: ignore[arg-type]
    assert prices.at("DE", at_s + 3 * DAY) == Price(pytest.approx(0.15), 3)  # type: ignore[arg-type]
    assert prices.at("DE", at_s + 8 * DAY) is None
    assert prices.at("FR", at_s) is None


def test_prices_of_a_stretch_are_its_mean() -> None:
    """Two hours have the mean of both; a zone without prices is left out."""
    prices = EnergyPrices()
    prices.put("DE", day(0), 0.0)
    assert prices.mean(4 * HOUR, 6 * HOUR) == {"DE": pytest.approx(0.145)}
    assert prices.mean(20 * DAY, 20 * DAY + HOUR) == {}
    assert prices.changes_s(4.25 * HOUR) == pytest.approx(0.75 * HOUR)


def test_withdrawn_prices_go_and_past_ones_stay() -> None:
    """A server's list replaces what it had announced for later."""
    prices = EnergyPrices()
    assert prices.replace("DE", day(0), 0.0)
    assert not prices.replace("DE", day(0), 0.0)
    assert prices.replace("DE", [], 12 * HOUR)
    assert prices.at("DE", 11.5 * HOUR) is not None
    assert prices.at("DE", 12.5 * HOUR) is None


def test_prices_are_bounded_in_number() -> None:
    """Of too many steps as many are kept as are allowed, those of now among them."""
    prices = EnergyPrices()
    prices.put("DE", [PriceStep(s, s + 1.0, 0.1) for s in range(2 * MOST_STEPS)], 10 * DAY)
    prices.put(
        "DE", [PriceStep(10 * DAY + s, 10 * DAY + s + 1, 0.1) for s in range(9000)], 10 * DAY
    )
    assert len(prices.courses["DE"]) == MOST_STEPS
    assert prices.at("DE", 10 * DAY) == Price(0.1)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e9, -2.0, 85.0])
def test_what_is_no_price_is_refused_with_its_bounds(wrong: float) -> None:
    """Also euros per MWh in the place of euros per kWh."""
    assert "EUR/kWh" in wrong_price(wrong)
    assert not wrong_price(0.085)
    assert not wrong_price(-0.5)  # day-ahead markets have such hours


@given(st.floats(-1, 10), st.floats(0, 2000), st.floats(0, 1e5))
def test_no_plan_is_paid_for_drawing_power(price: float, intensity: float, carbon: float) -> None:
    """The worth of a kWh is never below 0, and never falls with carbon or its price."""
    counted = counted_eur_per_kwh(price, intensity, carbon)
    assert 0 <= counted <= counted_eur_per_kwh(price, intensity + 1, carbon)

"""A provider's record: what it has been wrong about lately is corrected, and only that."""

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.carbon.core.forecast.bias_correction import (
    HOURS,
    MEMORY,
    Correction,
    ForecastRecord,
)
from services.carbon.core.forecast.combination import combined
from services.carbon.core.forecast.forecaster import forecast
from services.carbon.core.model import Outlook, Provenance, Sample
from tests.support.examples import examples

START = datetime(2024, 3, 6, tzinfo=UTC)
HOUR = timedelta(hours=1)


def curve(hour: int) -> float:
    return 300 + 80 * math.sin(2 * math.pi * hour / 24)


def outlook(hour: int, error: float = 0.0, hours: int = HOURS + 1) -> Outlook:
    """Return what a provider says at `hour` that is wrong by `error` all the time."""
    samples = (
        Sample(START + (hour + ahead) * HOUR, curve(hour + ahead) - error, "forecast")
        for ahead in range(hours)
    )
    return Outlook(tuple(samples), HOUR, START + hour * HOUR)


def observed(hours: int, provenance: Provenance = "measured") -> list[Sample]:
    return [Sample(START + hour * HOUR, curve(hour), provenance) for hour in range(hours)]


def recorded(hours: int, error: float = 0.0, ahead: int = HOURS + 1) -> ForecastRecord:
    record = ForecastRecord()
    for hour in range(hours):
        record.note(outlook(hour, error, ahead), START + hour * HOUR)
    return record


def corrected(record: ForecastRecord, hours: int) -> Correction:
    found = record.correction(observed(hours), START + (hours - 1) * HOUR)
    assert found is not None
    return found


@given(error=st.floats(-100, 100), days=st.integers(7, 20))
@examples(0.1)
def test_a_provider_that_is_always_too_low_is_corrected_upwards(error: float, days: int) -> None:
    """By nearly all of it after a week, whatever it is."""
    found = corrected(recorded(days * 24, error), days * 24)

    assert found.shift[1:25] == pytest.approx(np.full(24, error), abs=0.2 * abs(error) + 1e-6)
    assert np.all(found.low[1:] <= found.shift[1:])
    assert np.all(found.shift[1:] <= found.high[1:])


def test_a_provider_that_is_right_is_left_alone_and_trusted() -> None:
    found = corrected(recorded(240), 240)

    assert np.abs(np.stack([found.shift, found.low, found.high])).max() < 1e-6


@pytest.mark.parametrize("hours", [1, 48, 71])
def test_less_than_three_days_say_nothing(hours: int) -> None:
    assert recorded(hours, 30).correction(observed(hours), START + (hours - 1) * HOUR) is None


def test_what_came_must_have_been_seen() -> None:
    """Values that were themselves predicted prove no provider right."""
    record, now = recorded(240, 30), START + 239 * HOUR

    assert record.correction(observed(240, "forecast"), now) is None
    assert record.correction(observed(200), now) is None


@pytest.mark.parametrize("late", [1, 3, 12])
def test_measurements_that_come_late_correct_as_well(late: int) -> None:
    found = recorded(240, 30).correction(observed(240 - late), START + 239 * HOUR)

    assert found is not None
    assert found.shift[6] == pytest.approx(30, abs=5)


def test_hours_without_a_forecast_are_bridged() -> None:
    record = ForecastRecord()
    for hour in range(0, 240, 3):
        record.note(outlook(hour, 30), START + hour * HOUR)

    assert corrected(record, 240).shift[6] == pytest.approx(30, abs=6)


def test_a_forecast_of_a_day_is_corrected_as_far_as_it_reaches() -> None:
    """Beyond it nothing is known: our own forecast stands there."""
    correction = corrected(recorded(240, 30, ahead=25), 240)
    own = forecast(observed(240), START + 239 * HOUR)
    found = combined(own, outlook(239, 30, 25), "x", correction)

    assert found.periods[20].intensity_gco2e_per_kwh == pytest.approx(curve(259), abs=6)
    assert found.periods[30] == own.periods[30]


def test_what_is_kept_is_bounded_and_can_be_kept_elsewhere() -> None:
    record, again = recorded(24 * 40, 30), ForecastRecord()
    again.restore(record.issued | {7: [1.0]})

    assert len(record.issued) == MEMORY // HOUR
    assert again.issued == record.issued


@given(future=st.lists(st.floats(0, 1000), min_size=48, max_size=48))
@examples(0.1)
def test_values_after_now_change_nothing(future: list[float]) -> None:
    record, now = recorded(200, 30), START + 199 * HOUR
    before = record.correction(observed(200), now)
    for hour, value in enumerate(future, 200):
        later = Outlook((Sample(START + hour * HOUR, value, "forecast"),), HOUR, now)
        record.note(later, START + hour * HOUR)
    after = record.correction(observed(200), now)

    assert before is not None
    assert after is not None
    assert np.array_equal(before.shift, after.shift)

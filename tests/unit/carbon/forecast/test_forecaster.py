"""The forecast: what it must say, what it must not know, and that it is better than guessing."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.carbon.v1.records import Forecast
from services.carbon.core.forecast.forecaster import MAX_HORIZON, forecast
from services.carbon.core.model import Sample
from services.carbon.core.monitor import Monitor
from services.carbon.core.sources.source import Source
from services.carbon.core.sources.synthetic import SyntheticSource
from services.carbon.core.sources.trace import TraceSource
from tests.support.examples import examples

START = datetime(2022, 4, 8, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def history(values: list[float], step: timedelta = HOUR) -> tuple[Sample, ...]:
    return tuple(Sample(START + index * step, value) for index, value in enumerate(values))


def daily(days: float, step: timedelta) -> tuple[Sample, ...]:
    """Return a curve that is the same every day."""
    instants = (index * step for index in range(round(days * DAY / step)))
    values = [
        200 + 80 * math.sin(2 * math.pi * (when / DAY)) + 30 * (when % DAY > DAY / 2)
        for when in instants
    ]
    return history(values, step)


def monitor(source: Source, now: datetime) -> Monitor:
    return Monitor("Z", source, now, signal="average", average_window=DAY)


def of(source: Source, now: datetime) -> Forecast:
    found = monitor(source, now).forecast(now, MAX_HORIZON)
    assert found is not None
    return found


@given(
    values=st.lists(st.floats(0, 2000), min_size=1, max_size=60),
    step_min=st.integers(1, 200),
    late_min=st.integers(0, 5000),
    repeats=st.integers(1, 20),
)
@examples(0.5)
def test_any_history_gives_ordered_bounds_and_periods_without_holes(
    values: list[float], step_min: int, late_min: int, repeats: int
) -> None:
    """Odd steps, long gaps before now, zeros, and the same few values again and again."""
    known = history(values * repeats, step_min * MINUTE)
    now = known[-1].since + late_min * MINUTE
    found = forecast(known, now)

    first, last = found.periods[0], found.periods[-1]
    assert first.since <= now < first.since + first.length
    assert first.intensity_gco2e_per_kwh == known[-1].intensity_gco2e_per_kwh
    assert first.low_gco2e_per_kwh == first.high_gco2e_per_kwh == first.intensity_gco2e_per_kwh
    assert last.since + last.length >= now + MAX_HORIZON
    assert all(a.since + a.length == b.since for a, b in pairwise(found.periods))
    for each in found.periods:
        assert 0 <= each.low_gco2e_per_kwh <= each.intensity_gco2e_per_kwh
        assert each.intensity_gco2e_per_kwh <= each.high_gco2e_per_kwh < math.inf


@pytest.mark.parametrize("step_min", [5, 15, 30, 60])
@pytest.mark.parametrize("days", [3, 30])
def test_a_day_that_repeats_is_forecast_exactly(step_min: int, days: int) -> None:
    """Whatever the step, and as soon as there are a few days of it."""
    step = step_min * MINUTE
    known = daily(days + 0.37, step)
    found = forecast(known, known[-1].since)

    truth = {sample.since: sample.intensity_gco2e_per_kwh for sample in daily(days + 4, step)}
    assert found.periods[0].length == step
    for each in found.periods:
        assert each.intensity_gco2e_per_kwh == pytest.approx(truth[each.since], abs=0.5)


@pytest.mark.parametrize(
    ("days", "method"),
    [(0.5, "persistence"), (2, "seasonal"), (2.9, "seasonal"), (3.1, "seasonal-regression")],
)
def test_the_method_follows_the_length_of_the_history(days: float, method: str) -> None:
    known = daily(days, HOUR)

    assert forecast(known, known[-1].since).method == method


def test_little_history_means_wide_bounds() -> None:
    """One value says nothing of how far the next will be; a month of a steady curve does."""
    one, month = daily(0.05, HOUR), daily(30, HOUR)
    unsure, sure = forecast(one, one[-1].since), forecast(month, month[-1].since)

    def width(found: Forecast, hours: int) -> float:
        return found.periods[hours].high_gco2e_per_kwh - found.periods[hours].low_gco2e_per_kwh

    assert width(unsure, 24) > width(unsure, 1) > 20
    assert width(sure, 24) < 1


def test_a_constant_grid_stays_constant() -> None:
    found = of(TraceSource("static", (Sample(START, 605.59),), loop=False), START + 40 * DAY)

    for each in found.periods:
        bounds = (each.low_gco2e_per_kwh, each.intensity_gco2e_per_kwh, each.high_gco2e_per_kwh)
        assert bounds == pytest.approx((605.59, 605.59, 605.59))


def test_an_outage_of_days_does_not_become_a_habit_of_the_grid() -> None:
    """Held values are left out of the daily shape; the one held now is the present."""
    known = [
        replace(sample, intensity_gco2e_per_kwh=1000.0, provenance="held")
        if 26 * DAY < sample.since - START < 28 * DAY
        else sample
        for sample in daily(30.37, HOUR)
    ]
    found = forecast(known, known[-1].since)

    truth = {sample.since: sample.intensity_gco2e_per_kwh for sample in daily(34, HOUR)}
    for each in found.periods:
        assert each.intensity_gco2e_per_kwh == pytest.approx(truth[each.since], abs=0.5)
    known[-1] = replace(known[-1], intensity_gco2e_per_kwh=7.0, provenance="held")
    assert forecast(known, known[-1].since).periods[0].intensity_gco2e_per_kwh == 7.0


@given(
    futures=st.lists(
        st.lists(st.floats(0, 1000), min_size=60, max_size=60), min_size=2, max_size=2
    ),
    past_h=st.integers(1, 24 * 25),
    loop=st.booleans(),
)
@examples(0.12)
def test_a_replay_does_not_peek_into_the_traces_future(
    futures: list[list[float]], past_h: int, loop: bool
) -> None:
    """Two records with one past and different futures: looped, they differ before the start too."""
    past = [s.intensity_gco2e_per_kwh for s in daily(25, HOUR)][:past_h]
    one, other = (
        of(TraceSource("t", history(past + future), loop=loop), START + (past_h - 1) * HOUR)
        for future in futures
    )

    assert one == other


def test_a_record_in_its_second_round_is_its_own_history() -> None:
    source = TraceSource("t", daily(1, HOUR), loop=True)

    assert of(source, START).method == "persistence"
    assert of(source, START + 2 * DAY).method == "seasonal"


def test_a_source_that_has_not_begun_has_no_forecast() -> None:
    source = TraceSource("t", daily(1, HOUR), loop=False)

    assert monitor(source, START - HOUR).forecast(START - HOUR, MAX_HORIZON) is None


def test_a_forecast_is_worked_out_once_per_period() -> None:
    """A watcher more costs nothing; a new value, or an hour without one, makes a new forecast."""
    now = START + 30 * DAY
    watched = monitor(SyntheticSource(207.13, 69.23, seed=5, step=HOUR), now)
    first, again = watched.forecast(now, MAX_HORIZON), watched.forecast(now + HOUR / 2, MAX_HORIZON)
    assert first is not None
    assert again is not None
    assert again.periods[3] is first.periods[3]

    watched.advance(now + HOUR)
    after = watched.forecast(now + HOUR, MAX_HORIZON)
    assert after is not None
    assert after.periods[0].since == now + HOUR


def test_the_horizon_cuts_and_always_leaves_the_period_in_force() -> None:
    now = START + 30 * DAY + HOUR / 3
    watched = monitor(SyntheticSource(207.13, 69.23, seed=5, step=HOUR), now)
    lengths = {}
    for hours in (0, 1, 24, 48):
        found = watched.forecast(now, hours * HOUR)
        assert found is not None
        lengths[hours] = len(found.periods)

    assert lengths == {0: 1, 1: 2, 24: 25, 48: 49}


def test_where_days_differ_by_chance_alone_the_mean_of_seven_days_is_nearly_reached() -> None:
    """No forecast is better then; one that starts from the present value, or yesterday's, is worse.

    Eight days of a daily curve with noise, two days ahead: within 5 % over twenty such grids.
    """
    ours, baseline = [], []
    for seed in range(20):
        rng = Random(seed)
        values = [
            200 + 80 * math.sin(2 * math.pi * hour / 24) + rng.gauss(0, 30)
            for hour in range(24 * 10 + 1)
        ]
        known = history(values[: 24 * 8 + 1])
        periods = forecast(known, known[-1].since).periods
        for ahead in (36, 42, 47, 48):
            came = values[24 * 8 + ahead]
            week = values[24 * 8 + ahead - 48 :: -24][:7]
            ours.append(abs(periods[ahead].intensity_gco2e_per_kwh - came))
            baseline.append(abs(fmean(week) - came))

    assert fmean(ours) < 1.05 * fmean(baseline)

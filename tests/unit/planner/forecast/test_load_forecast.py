"""The load forecaster: what it promises, and how it starts."""

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import InvalidArgument
from services.planner.core.forecast.load_forecast import (
    MARGIN,
    MIN_KNOWN,
    Forecast,
    Forecaster,
    Interval,
)
from services.planner.core.forecast.load_forecast_analogues import Analogues, Likeness, Sample
from tests.support.examples import examples

MINUTE_S = 60.0

loads = st.floats(0, 1e6)


def replayed(
    maxima_rps: Iterable[float], coverage: float = 0.9
) -> Iterator[tuple[Forecast, float]]:
    """Yield each forecast with what came; the mean is taken to be 80 % of the maximum."""
    forecaster = Forecaster(MINUTE_S, coverage)
    for minute, most in enumerate(maxima_rps):
        forecast = forecaster.forecast()
        if forecast is not None:
            yield forecast, most
        forecaster.observe(Interval(minute * MINUTE_S, 0.8 * most, most))


def test_nothing_is_forecast_before_the_first_interval() -> None:
    assert Forecaster(MINUTE_S, 0.9).forecast() is None


def test_the_first_forecast_is_the_last_maximum_with_a_margin() -> None:
    forecaster = Forecaster(MINUTE_S, 0.9)
    forecaster.observe(Interval(600.0, 80.0, 100.0))

    forecast = forecaster.forecast()
    assert forecast is not None
    assert forecast.start_s == 660.0
    assert forecast.expected_rps == pytest.approx(100.0)
    assert forecast.high_rps == pytest.approx(100 * MARGIN)


@given(st.lists(loads, min_size=1, max_size=80), st.floats(0.5, 0.99))
def test_bounds_are_in_order_finite_and_not_negative_for_any_load(
    maxima_rps: list[float], coverage: float
) -> None:
    for forecast, _ in replayed(maxima_rps, coverage):
        assert 0 <= forecast.low_rps <= forecast.expected_rps <= forecast.high_rps < np.inf


@examples(0.15)
@given(st.floats(0.1, 1e5))
def test_a_constant_load_is_forecast_as_it_is(load_rps: float) -> None:
    *_, (forecast, _) = replayed([load_rps] * (3 * MIN_KNOWN))

    assert forecast.expected_rps == pytest.approx(load_rps, rel=1e-9)
    assert forecast.high_rps == pytest.approx(load_rps, rel=0.02)


@pytest.mark.parametrize("coverage", [0.6, 0.98])
def test_the_bounds_cover_what_they_promise_even_where_the_load_changes_its_nature(
    coverage: float,
) -> None:
    """Quantile tracking: calm, then wild, then twice as large; each bound misses as agreed.

    A bound near the median may cover a little more: it never crosses the median.
    """
    draw = np.random.default_rng(1)
    calm = 100 * np.exp(0.05 * draw.standard_normal(700))
    wild = 100 * np.exp(0.4 * draw.standard_normal(700))
    larger = 200 * np.exp(0.1 * draw.standard_normal(700))
    seen = list(replayed(np.concatenate([calm, wild, larger]), coverage))[MIN_KNOWN:]

    above = np.mean([most > forecast.high_rps for forecast, most in seen])
    below = np.mean([most < forecast.low_rps for forecast, most in seen])
    for missed in (above, below):
        assert 1 - coverage - 0.04 <= missed <= 1 - coverage + 0.02


def test_after_a_long_calm_the_bounds_find_back_within_an_hour() -> None:
    """A bound that no load exceeded shrinks only until the load grows again."""
    draw = np.random.default_rng(4)
    wild = 100 * np.exp(0.2 * draw.standard_normal(180))
    seen = list(replayed([*[100.0] * 1500, *wild]))[-120:]

    assert np.mean([most > forecast.high_rps for forecast, most in seen]) < 0.2


def test_a_job_that_starts_on_the_hour_is_foreseen() -> None:
    """The minutes before carry no sign of it; only the place in the hour does."""
    draw = np.random.default_rng(2)
    noise = np.exp(0.03 * draw.standard_normal(24 * 60))
    maxima = [300 if minute % 60 == 0 else 100 for minute in range(24 * 60)] * noise
    on_the_hour = [
        (forecast, most)
        for forecast, most in replayed(maxima)
        if forecast.start_s % 3600 == 0 and forecast.start_s > 12 * 3600
    ]

    assert len(on_the_hour) == 11
    for forecast, most in on_the_hour:
        assert forecast.expected_rps == pytest.approx(most, rel=0.2)


@pytest.mark.parametrize("length", [200, 1200])
def test_where_nothing_repeats_it_is_hardly_worse_than_the_best_simple_mean(length: int) -> None:
    """Bursts without memory around a slow level: what was alike says nothing, a mean does."""
    draw = np.random.default_rng(5)
    level = 100 * np.exp(np.cumsum(0.01 * draw.standard_normal(length)))
    maxima = level * np.exp(0.4 * draw.standard_normal(length))
    seen = list(replayed(maxima))[length // 2 :]
    means, errors = np.full(4, maxima[0]), []
    for most in maxima[1:]:
        errors.append(np.abs(means - most))
        keep = np.array([0.0, 0.5, 0.8, 0.9])
        means = keep * means + (1 - keep) * most
    best = np.mean(errors[length // 2 :], axis=0).min()

    ours = np.mean([abs(forecast.expected_rps - most) for forecast, most in seen])
    assert ours <= 1.03 * best


def test_a_load_ten_times_as_large_is_no_news() -> None:
    """Changes are learnt as ratios, so that a forecast scales with the load."""
    draw = np.random.default_rng(3)
    shape = np.exp(0.2 * draw.standard_normal(300))
    small = [forecast.expected_rps for forecast, _ in replayed(1e7 * shape)]
    large = [forecast.expected_rps for forecast, _ in replayed(1e8 * shape)]

    assert np.array(large) == pytest.approx(10 * np.array(small), rel=0.01)


def test_after_a_hole_the_next_forecast_knows_only_what_came_after_it() -> None:
    forecaster = Forecaster(MINUTE_S, 0.9)
    for minute in range(10):
        forecaster.observe(Interval(minute * MINUTE_S, 80.0, 100.0))
    forecaster.observe(Interval(100 * MINUTE_S, 8.0, 10.0))

    forecast = forecaster.forecast()
    assert forecast is not None
    assert forecast.start_s == 101 * MINUTE_S
    assert forecast.expected_rps == pytest.approx(10.0)


def test_an_interval_that_does_not_come_after_the_last_is_refused() -> None:
    forecaster = Forecaster(MINUTE_S, 0.9)
    forecaster.observe(Interval(600.0, 1.0, 2.0))

    with pytest.raises(InvalidArgument, match=r"start_s must be after 600\.0"):
        forecaster.observe(Interval(600.0, 1.0, 2.0))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["mean_rps", "max_rps", "end_rps"])
def test_an_interval_without_a_sane_number_is_refused(field: str, value: float) -> None:
    numbers = {"mean_rps": 1.0, "max_rps": 2.0, "end_rps": 1.0, field: value}

    with pytest.raises(InvalidArgument, match=field):
        Interval(start_s=0.0, **numbers)


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    known = Analogues(memory=3, features=1)
    for outcome in range(5):
        known.add(np.zeros(1), 0, float(outcome))

    sample = known.near(np.zeros(1), Likeness(np.ones(1), 1.0))
    assert sorted(sample.outcomes) == [2.0, 3.0, 4.0]


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0.01, 10)), min_size=1, max_size=30),
    st.floats(0.01, 0.99),
)
def test_a_quantile_has_its_share_at_or_below_it_and_no_smaller_outcome_has(
    weighted: list[tuple[float, float]], level: float
) -> None:
    outcomes, weights = (np.array(column) for column in zip(*weighted, strict=True))
    total = weights.sum()
    found = Sample(outcomes, weights / total).quantile(level)

    assert weights[outcomes <= found].sum() / total >= level - 1e-9
    assert weights[outcomes < found].sum() / total < level + 1e-9


def test_of_many_situations_the_nearest_ones_count() -> None:
    known = Analogues(memory=100, features=1)
    for place in range(100):
        known.add(np.array([float(place)]), place % 2, float(place))
    likeness = Likeness(np.ones(1), softness=1.0, neighbours=3)

    anywhere, odd = (
        known.near(np.array([50.0]), likeness),
        known.near(np.array([50.0]), likeness, 1),
    )
    assert sorted(anywhere.outcomes) == [49.0, 50.0, 51.0]
    assert set(odd.outcomes) <= {47.0, 49.0, 51.0, 53.0}
    assert not known.near(np.array([50.0]), likeness, 2).outcomes.size

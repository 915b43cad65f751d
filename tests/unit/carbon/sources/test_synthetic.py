"""The made-up grid has the moments it promises, and is a pure function of seed and time."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import fmean, median, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.carbon.core.sources.source import samples
from services.carbon.core.sources.synthetic import SyntheticSource
from tests.support.examples import examples

HOUR = timedelta(hours=1)
START = datetime(2022, 1, 1, tzinfo=UTC)
INSTANTS = st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000)).map(
    lambda offset: START + offset
)


def source(seed: int = 0, *, mean: float = 207.13, std: float = 69.23) -> SyntheticSource:
    return SyntheticSource(mean, std, seed=seed, step=HOUR)


def values(source: SyntheticSource, hours: int) -> list[float]:
    return [source.at(START + index * HOUR).intensity_gco2e_per_kwh for index in range(hours)]


@pytest.mark.parametrize(("mean", "std"), [(207.13, 69.23), (605.59, 83.67), (54.46, 35.51)])
def test_mean_and_spread_over_a_year_are_the_configured_ones(mean: float, std: float) -> None:
    """CARBONDIS Table IV's two zones, and Ontario, whose spread is 65 % of its mean.

    The middle of five seeds: one in a hundred has a storm that moves a year's spread by 9 %.
    """
    years = [values(source(seed, mean=mean, std=std), 364 * 24) for seed in range(5)]

    assert median(map(fmean, years)) == pytest.approx(mean, rel=0.02)
    assert median(map(pstdev, years)) == pytest.approx(std, rel=0.05 if std / mean > 0.5 else 0.02)
    assert min(map(min, years)) > 0


def test_no_spread_gives_the_mean_at_every_hour() -> None:
    assert values(source(std=0.0), 48) == pytest.approx([207.13] * 48)


def test_a_typical_day_has_a_solar_valley_between_two_peaks() -> None:
    """Averaged over a year, noon is the cleanest hour and the evening the dirtiest."""
    year = values(source(), 364 * 24)
    day = [fmean(year[hour::24]) for hour in range(24)]

    assert min(range(24), key=day.__getitem__) in {12, 13}
    assert max(range(24), key=day.__getitem__) in {19, 20}
    assert day[7] > max(day[4], day[10])


@given(seed=st.integers(), instants=st.lists(INSTANTS, min_size=1, max_size=20))
@examples(0.2)
def test_the_same_seed_gives_the_same_grid_in_whatever_order_it_is_read(
    seed: int, instants: list[datetime]
) -> None:
    """No state: a restarted service goes on where the old one stood."""
    forwards, backwards = source(seed), source(seed)

    assert [forwards.at(when) for when in instants] == [
        backwards.at(when) for when in reversed(instants)
    ][::-1]


def test_seeds_differ() -> None:
    assert values(source(1), 24) != values(source(2), 24)


@given(when=INSTANTS, step_s=st.sampled_from([60.0, 300.0, 1800.0, 3600.0]))
@examples(0.3)
def test_a_value_holds_for_one_step(when: datetime, step_s: float) -> None:
    step = timedelta(seconds=step_s)
    grid = SyntheticSource(207.13, 69.23, seed=0, step=step)
    sample, change = grid.at(when), grid.next_change(when)

    assert sample.since <= when < change == sample.since + step
    assert grid.at(change - timedelta(microseconds=1)) == sample
    assert grid.at(change).since == change


def test_consecutive_half_hours_never_jump_by_more_than_a_quarter() -> None:
    """Weather and curve are smooth, midnight included: a plan can follow them."""
    grid = SyntheticSource(207.13, 69.23, seed=3, step=timedelta(minutes=30))
    year = [
        sample.intensity_gco2e_per_kwh
        for sample in samples(grid, START, START + timedelta(days=90))
    ]

    assert max(abs(b / a - 1) for a, b in pairwise(year)) < 0.25

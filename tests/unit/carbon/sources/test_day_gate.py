"""No average intensity of 0, and no leap out of the day's range, is taken from one value alone."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.carbon.core.model import Sample
from services.carbon.core.sources.day_gate import CONFIRMED, ENOUGH, STEP, DayGate
from services.carbon.core.sources.feed import Feed, Reading

NOW = datetime(2024, 3, 6, tzinfo=UTC)
HOUR = timedelta(hours=1)


def sample(hour: float, value: float) -> Sample:
    return Sample(NOW + hour * HOUR, value)


def day(*values: float) -> Feed:
    """A feed that has had a value each hour until now."""
    feed = Feed("x", gate=DayGate())
    first = -len(values)
    feed.add(Reading(tuple(sample(first + i, value) for i, value in enumerate(values))), NOW)
    return feed


def in_force(feed: Feed, hour: float) -> float:
    found = feed.at(NOW + hour * HOUR)
    assert found is not None
    return found.intensity_gco2e_per_kwh


@pytest.mark.parametrize("value", [0.0, 30.0, 1200.0, 4999.0])
def test_a_value_that_no_grid_has_within_a_step_is_held_and_refused_by_name(value: float) -> None:
    """The last value stays in force; the next good one is taken, and the glitch is forgotten."""
    feed = day(260, 250, 240, 250, 265, 260, 258)
    update = feed.add(Reading((sample(0, value),)), NOW)

    assert (update.since, in_force(feed, 0.5)) == (None, 258)
    assert len(update.refused) == 1
    assert f"{value:g} of 2024-03-06T00:00:00+00:00" in update.refused[0]
    feed.add(Reading((sample(0, value), sample(1, 255))), NOW + HOUR)
    assert in_force(feed, 1.5) == 255
    assert in_force(feed, 0.5) == 258


def test_a_grid_that_has_changed_is_believed_once_others_confirm_it() -> None:
    feed = day(*[260.0] * 24)
    for hour in range(CONFIRMED):
        assert in_force(feed, hour) == 260
        feed.add(Reading((sample(hour, 30.0 + hour),)), NOW + hour * HOUR)

    assert [in_force(feed, hour) for hour in range(CONFIRMED)] == [30, 31, 32]


def test_zero_is_never_confirmed_next_to_a_grid_that_emits() -> None:
    feed = day(*[260.0] * 24)
    for hour in range(24):
        feed.add(Reading((sample(hour, 0.0),)), NOW + hour * HOUR)

    assert in_force(feed, 30) == 260
    assert Feed("x", gate=DayGate()).add(Reading((sample(0, 0.0),)), NOW).refused


def test_zero_is_a_rounded_value_next_to_a_grid_that_hardly_emits() -> None:
    feed = day(3, 2, 1, 2, 3, 4, 2)
    feed.add(Reading((sample(0, 0.0),)), NOW)

    assert in_force(feed, 0) == 0


@given(st.lists(st.floats(0.4, 2.5), min_size=ENOUGH, max_size=60))
def test_a_grid_that_ramps_is_never_doubted(ramps: list[float]) -> None:
    """Steps within the factor pass, wherever they lead."""
    assert max(ramps, default=0) < STEP
    value, values = 200.0, []
    for ramp in ramps:
        value = min(max(value * ramp, 1.0), 4000.0)
        values.append(value)
    feed = day(*values)

    assert [each.intensity_gco2e_per_kwh for each in feed.known] == values


@given(
    values=st.lists(st.one_of(st.just(0.0), st.floats(0, 5000)), min_size=1, max_size=48),
    again=st.booleans(),
)
def test_values_in_one_reading_or_in_many_are_judged_alike(
    values: list[float], again: bool
) -> None:
    """Providers send their history again with each answer, or only the newest value.

    A value of a history that comes again may be believed by what was confirmed since.
    """
    samples = [sample(hour - len(values), value) for hour, value in enumerate(values)]
    whole, single = Feed("x", gate=DayGate()), Feed("x", gate=DayGate())
    whole.add(Reading(tuple(samples)), NOW)
    for i, each in enumerate(samples):
        single.add(Reading(tuple(samples[: i + 1]) if again else (each,)), NOW)

    assert {*whole.known} <= {*single.known}
    assert again or whole.known == single.known

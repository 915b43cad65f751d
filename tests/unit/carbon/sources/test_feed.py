"""A feed takes in whatever a provider says, in any order, and keeps what can be."""

import math
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.carbon.core.forecast.bias_correction import ProviderForecast
from services.carbon.core.model import Outlook, Provenance, Sample
from services.carbon.core.sources.feed import KEEP, MAX_SAMPLES, Feed, Reading

NOW = datetime(2024, 3, 6, 19, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)


def sample(hours_ago: float, value: float, provenance: Provenance = "measured") -> Sample:
    return Sample(NOW - hours_ago * HOUR, value, provenance)


def fed(*samples: Sample) -> Feed:
    feed = Feed("x")
    feed.add(Reading(samples), NOW)
    return feed


@given(
    values=st.dictionaries(st.integers(0, 50), st.floats(0, 5000), min_size=1),
    order=st.randoms(use_true_random=False),
    cuts=st.lists(st.integers(0, 50), max_size=4),
)
def test_the_order_in_which_values_come_is_of_no_matter(
    values: dict[int, float], order: object, cuts: list[int]
) -> None:
    """Late, out of order, twice, in one reading or in many: the same step function."""
    samples = [sample(hours, value) for hours, value in values.items()]
    shuffled = [*samples, *samples[: len(samples) // 2]]
    order.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis hands out a random.Random
    feed, edges = Feed("x"), [0, *sorted(cuts), len(shuffled)]
    for first, last in pairwise(edges):
        feed.add(Reading(tuple(shuffled[first:last])), NOW)

    assert feed.known == tuple(sorted(samples, key=lambda each: each.since))


@pytest.mark.parametrize(
    "value", [-1.0, -1e-9, 5000.1, 1e12, math.inf, -math.inf, math.nan], ids=str
)
def test_an_absurd_value_is_left_out_with_its_reason_and_the_others_are_kept(value: float) -> None:
    """One bad sample costs the zone no good one."""
    feed = Feed("x")
    update = feed.add(Reading((sample(2, 100.0), sample(1, value))), NOW)

    assert feed.known == (sample(2, 100.0),)
    assert len(update.refused) == 1
    assert "2024-03-06T18:10:00+00:00 is not within 0..5000" in update.refused[0]


def test_a_rank_above_a_hundred_is_absurd() -> None:
    """Percentiles have a range of their own."""
    feed = Feed("x", maximum=100.0)
    feed.add(Reading((sample(2, 100.0), sample(1, 101.0))), NOW)

    assert feed.known == (sample(2, 100.0),)


def test_what_lies_in_the_future_is_no_fact_yet() -> None:
    """Clocks may differ by minutes, not by hours."""
    feed = Feed("x")
    update = feed.add(Reading((sample(-0.5, 1.0), sample(-2, 2.0))), NOW)

    assert feed.known == (sample(-0.5, 1.0),)
    assert "lies in the future" in update.refused[0]
    assert feed.at(NOW) is None


def test_a_revision_counts_and_says_since_when_the_past_is_another() -> None:
    """Readers of history know from which sample on to read again."""
    feed = fed(sample(3, 30.0), sample(2, 20.0, "estimated"), sample(1, 10.0, "forecast"))
    update = feed.add(Reading((sample(2, 21.0), sample(1, 10.0, "forecast"))), NOW)

    assert update.since == NOW - 2 * HOUR
    assert feed.at(NOW - 2 * HOUR) == sample(2, 21.0)


def test_what_was_measured_is_not_overruled_by_what_had_been_forecast() -> None:
    """A measured sample stays when a forecast of its time comes later."""
    feed = fed(sample(1, 10.0))
    update = feed.add(Reading((sample(1, 99.0, "forecast"),)), NOW)

    assert (update.since, feed.known) == (None, (sample(1, 10.0),))


def test_values_from_before_all_memory_are_not_kept() -> None:
    """A provider that answers with a ten-year-old value does not make it the present."""
    feed = fed(Sample(NOW - timedelta(days=3650), 100.0), Sample(NOW - KEEP, 1.0), sample(1, 2.0))

    assert feed.known == (Sample(NOW - KEEP, 1.0), sample(1, 2.0))
    feed.add(Reading(), NOW + HOUR)
    assert feed.observed_since() == NOW - HOUR


def test_a_provider_that_never_stops_talking_fills_no_memory() -> None:
    """A value per second for half a day; a value that fell out is not news when sent again."""
    second = timedelta(seconds=1)
    talk = tuple(Sample(NOW - age * second, float(age % 7)) for age in range(MAX_SAMPLES + 100))
    feed = fed(*talk)

    assert len(feed.known) == MAX_SAMPLES
    assert feed.known[-1] == talk[0]
    assert feed.add(Reading(talk[-50:]), NOW).since is None


def test_the_hour_that_comes_twice_in_autumn_is_two_hours() -> None:
    """Local times with their offsets; 27 October 2024 in Berlin has 25 hours."""
    berlin, start = ZoneInfo("Europe/Berlin"), datetime(2024, 10, 26, 22, tzinfo=UTC)
    local = [(start + hour * HOUR).astimezone(berlin) for hour in range(26)]
    feed = Feed("x")
    feed.add(
        Reading(tuple(Sample(when, float(hour)) for hour, when in enumerate(local))),
        start + 26 * HOUR,
    )

    assert [when.hour for when in local[:5]] == [0, 1, 2, 2, 3]
    assert [each.intensity_gco2e_per_kwh for each in feed.known] == list(range(26))
    assert feed.at(start + 2.5 * HOUR) == Sample(start + 2 * HOUR, 2.0)


def test_an_instant_is_the_same_in_every_zone_of_time() -> None:
    """A revision that names it otherwise is still a revision."""
    feed = fed(sample(1, 10.0))
    elsewhere = (NOW - HOUR).astimezone(timezone(timedelta(hours=-7)))
    feed.add(Reading((Sample(elsewhere, 11.0),)), NOW)

    assert [each.intensity_gco2e_per_kwh for each in feed.known] == [11.0]


def test_a_forecast_with_an_absurd_value_is_left_out_as_a_whole() -> None:
    """A forecast with a hole would be planned by."""
    good = Outlook((sample(0, 1.0, "forecast"),), HOUR, NOW)
    bad = Outlook((sample(0, 1.0, "forecast"), sample(-1, -5.0, "forecast")), HOUR, NOW)
    feed = Feed("x")
    feed.add(Reading((), good), NOW)
    update = feed.add(Reading((), bad), NOW)

    assert feed.outlook is good
    assert update.refused == ("its forecast: a value is not within 0..5000",)


def test_a_forecast_is_provided_as_long_as_some_of_it_is_to_come() -> None:
    feed = Feed("x")
    outlook = Outlook((sample(0, 1.0), sample(-1, 2.0)), HOUR, NOW)
    feed.add(Reading((), outlook), NOW)

    assert feed.provider_forecast(NOW + 1.9 * HOUR) == ProviderForecast("x", outlook, feed.record)
    assert feed.provider_forecast(NOW + 2 * HOUR) is None

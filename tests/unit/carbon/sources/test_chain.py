"""A chain answers through any outage, and says how."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.carbon.core.model import Outlook, Sample
from services.carbon.core.monitor import Monitor
from services.carbon.core.sources.chain import Assumption, Chain, ChainLink
from services.carbon.core.sources.feed import Feed, Reading
from services.carbon.core.sources.synthetic import SyntheticSource
from tests.support.examples import examples

START = datetime(2024, 3, 6, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
STEPS = 48

KNOWN = st.dictionaries(st.integers(0, STEPS), st.integers(1, 999), max_size=12)
"""Half hours after START, and what began then."""


def at(step: float) -> datetime:
    return START + step * 30 * MINUTE


def feed(name: str, known: dict[int, int]) -> Feed:
    found = Feed(name)
    found.add(
        Reading(tuple(Sample(at(step), float(value)) for step, value in known.items())),
        at(STEPS),
    )
    return found


def chain(*known: dict[int, int], hold: timedelta | None = None) -> Chain:
    """Return a chain of feeds "a", "b", ... whose values are fresh for an hour."""
    links = tuple(ChainLink(feed(chr(97 + i), each), HOUR) for i, each in enumerate(known))
    return Chain(links, None if hold is None else Assumption(500.0, hold, START))


def monitor(source: Chain, now: datetime) -> Monitor:
    return Monitor("Z", source, now, signal="average", average_window=24 * HOUR)


def reported(source: Chain, step: float) -> tuple[float, str, str, float]:
    """Return value, provenance, source, and age in half hours."""
    sample = source.at(at(step))
    assert sample is not None
    age = at(step) - (sample.as_of or sample.since)
    return (
        sample.intensity_gco2e_per_kwh, sample.provenance, sample.source, age / (30 * MINUTE),
    )  # fmt: skip


def test_first_then_fallback_then_last_known_then_assumed() -> None:
    """The first falls silent after 1, its stand-in after 4; held for two hours, then assumed."""
    source = chain({0: 10, 1: 11}, {0: 20, 2: 22, 4: 24}, hold=2 * HOUR)

    assert [reported(source, step) for step in (0, 1, 2.9, 3, 4, 5.9, 6, 9.9, 10, 40)] == [
        (10, "measured", "a", 0),
        (11, "measured", "a", 0),
        (11, "measured", "a", pytest.approx(1.9)),
        (22, "measured", "b", 1),
        (24, "measured", "b", 0),
        (24, "measured", "b", pytest.approx(1.9)),
        (24, "held", "b", 2),
        (24, "held", "b", pytest.approx(5.9)),
        (500, "assumed", "static", 6),
        (500, "assumed", "static", 36),
    ]


def test_without_an_assumption_the_last_value_stands_for_ever_and_grows_old() -> None:
    assert reported(chain({0: 10}), 10_000) == (10, "held", "a", 10_000)


def test_before_anybody_said_anything_there_is_nothing_or_the_assumption() -> None:
    assert chain({}, {5: 1}).at(at(4)) is None
    assert chain({}, {}, hold=HOUR).at(START - MINUTE) is None
    assert reported(chain({}, {}, hold=HOUR), 3) == (500, "assumed", "static", 3)


def test_a_synthetic_stand_in_stands_in_as_soon_as_the_first_is_silent() -> None:
    links = (
        ChainLink(feed("a", {0: 10}), HOUR),
        ChainLink(SyntheticSource(200, 50, seed=1, step=HOUR)),
    )
    source = Chain(links)

    assert reported(source, 1)[1:3] == ("measured", "a")
    assert reported(source, 2)[1:3] == ("measured", "synthetic")


@given(first=KNOWN, second=KNOWN, hold_h=st.integers(1, 9), offset_min=st.integers(0, 30 * STEPS))
def test_between_two_changes_the_value_in_force_is_one(
    first: dict[int, int], second: dict[int, int], hold_h: int, offset_min: int
) -> None:
    """A follower that wakes at each change misses nothing, not even a source that falls silent."""
    source, when = chain(first, second, hold=hold_h * HOUR), START + offset_min * MINUTE
    change = source.next_change(when)
    end = at(2 * STEPS) if change is None else min(change, at(2 * STEPS))
    probes = [when + (end - when) * share / 7 for share in range(7)]

    assert change is None or change > when
    assert len({source.at(probe) for probe in probes}) == 1


@given(first=KNOWN, second=KNOWN, offset_min=st.integers(0, 30 * STEPS))
def test_the_value_in_force_is_that_of_the_first_that_still_speaks(
    first: dict[int, int], second: dict[int, int], offset_min: int
) -> None:
    """Against the definition, looked up minute by minute."""
    when = START + offset_min * MINUTE
    sample = chain(first, second).at(when)
    speaking = []
    for known in (first, second):
        begun = [step for step in known if at(step) <= when]
        if begun and when < at(max(begun)) + HOUR:
            speaking.append(known[max(begun)])

    if speaking:
        assert sample is not None
        assert (sample.intensity_gco2e_per_kwh, sample.provenance) == (speaking[0], "measured")
    else:
        assert sample is None or sample.provenance == "held"
    assert sample is None or sample.since <= when


@examples(0.4)
@given(
    known=KNOWN.filter(bool),
    arrivals=st.lists(st.tuples(st.integers(0, STEPS), st.integers(1, 999)), max_size=8),
)
def test_what_is_learnt_late_makes_the_past_that_it_had_been_learnt_in_time(
    known: dict[int, int], arrivals: list[tuple[int, int]]
) -> None:
    """Backfills and revisions: history and average are those of a monitor that knew it all."""
    now = at(STEPS)
    source = chain(known)
    watched = monitor(source, at(0))
    watched.advance(now)
    for step, value in arrivals:
        update = source.feeds[0].add(Reading((Sample(at(step), float(value)),)), now)
        if update.since is not None:
            watched.revise(update.since, now)
    knowing = monitor(chain(known | dict(arrivals)), now)

    assert [each.sample for each in watched.history(None, now + HOUR)] == [
        each.sample for each in knowing.history(None, now + HOUR)
    ]
    assert watched.latest == knowing.latest


def test_a_clock_that_is_set_back_is_no_news_and_no_loss() -> None:
    watched = monitor(chain({0: 10, 1: 11, 2: 12}), at(2))
    before = watched.history(None, at(9))

    assert watched.advance(at(0)) is None
    assert watched.advance(at(2.5)) is None
    assert watched.history(None, at(9)) == before


@pytest.mark.parametrize("back", [1, 50, 500_000])
def test_a_forecast_after_the_clock_was_set_back_begins_with_the_newest_value(back: int) -> None:
    """The clock may be set to before all that is known."""
    watched = monitor(chain(dict.fromkeys(range(47), 10) | {47: 12}), at(47))
    watched.advance(at(47 - back))
    found = watched.forecast(at(47 - back), 24 * HOUR)

    assert found is not None
    assert (found.periods[0].since, found.periods[0].intensity_gco2e_per_kwh) == (at(47), 12)
    assert found.periods[-1].since == at(47) + 23.5 * HOUR


def test_a_clock_that_is_set_forward_shows_that_the_value_is_old() -> None:
    watched = monitor(chain({0: 10}), at(1))
    news = watched.advance(at(1000))

    assert news is not None
    assert (news.sample.provenance, news.age(at(1000))) == ("held", at(1000) - at(0))


def test_the_average_runs_over_what_was_in_force_also_in_an_outage() -> None:
    """Two hours of 10, then two of 30 by the stand-in."""
    watched = monitor(chain({0: 10, 2: 10}, dict.fromkeys(range(9), 30)), at(0))
    for step in range(9):
        watched.advance(at(step))
    latest = watched.latest

    assert latest is not None
    assert latest.average_gco2e_per_kwh == pytest.approx(20.0)


def test_a_provider_forecasts_only_while_it_reports() -> None:
    """The provider's values replace ours, but for the period in force; our bounds move along."""
    source = chain(dict.fromkeys(range(47), 100))
    outlook = Outlook((Sample(at(47), 300.0), Sample(at(48), 400.0)), 30 * MINUTE, at(46))
    source.feeds[0].add(Reading((), outlook), at(46))
    wanted = Chain((ChainLink(source.feeds[0], HOUR),), use_outlooks=True)
    watched, silent = monitor(wanted, at(46)), monitor(source, at(46))
    provided, own = watched.forecast(at(46), 3 * HOUR), silent.forecast(at(46), 3 * HOUR)

    assert provided is not None
    assert own is not None
    assert [each.intensity_gco2e_per_kwh for each in provided.periods[:4]] == pytest.approx(
        [100, 300, 400, own.periods[3].intensity_gco2e_per_kwh]
    )
    assert provided.method == "provider:a"
    assert all(
        each.low_gco2e_per_kwh <= each.intensity_gco2e_per_kwh <= each.high_gco2e_per_kwh
        for each in provided.periods
    )
    watched.advance(at(48))
    later = watched.forecast(at(48), 3 * HOUR)
    assert later is not None
    assert not later.method.startswith("provider")

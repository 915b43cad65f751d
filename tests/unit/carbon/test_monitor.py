"""CI, ACI and CIR: bounded by what was seen, in order, the same however often one looks."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.carbon.core.model import Intensity, Sample
from services.carbon.core.monitor import HISTORY, Monitor, MovingAverage
from services.carbon.core.sources.source import Source, samples
from services.carbon.core.sources.synthetic import SyntheticSource
from services.carbon.core.sources.trace import TraceSource
from tests.support.examples import examples

START = datetime(2022, 4, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

STEPS = st.lists(st.tuples(st.integers(1, 30), st.floats(0, 1000)), min_size=1, max_size=40)


def trace(steps: list[tuple[int, float]]) -> tuple[Sample, ...]:
    """Return samples, each given as (hours since the one before, intensity)."""
    when, recorded = START, []
    for hours, value in steps:
        when += hours * HOUR
        recorded.append(Sample(when, value))
    return tuple(recorded)


def monitor(source: Source, start: datetime = START, window: timedelta = DAY) -> Monitor:
    return Monitor("Z", source, start, signal="average", average_window=window)


def latest(monitor: Monitor) -> Intensity:
    assert monitor.latest is not None
    return monitor.latest


@given(steps=STEPS, window_h=st.integers(1, 48))
def test_the_average_lies_between_the_least_and_the_most_seen(
    steps: list[tuple[int, float]], window_h: int
) -> None:
    """Exactly, not nearly: the area under the curve is kept as a fraction."""
    average, seen = MovingAverage(window_h * HOUR), []
    for sample in trace(steps):
        seen.append(sample.intensity_gco2e_per_kwh)
        assert min(seen) <= average.push(sample) <= max(seen)


@given(steps=STEPS, window_h=st.integers(1, 48))
def test_the_average_is_the_area_under_the_curve_over_the_window(
    steps: list[tuple[int, float]], window_h: int
) -> None:
    """Against a sum over hours, which never forgets and never subtracts."""
    average, recorded = MovingAverage(window_h * HOUR), trace(steps)
    got = [average.push(sample) for sample in recorded][-1]

    source, end = TraceSource("t", recorded, loop=False), recorded[-1].since
    hours = [source.at(end - hour * HOUR) for hour in range(1, window_h + 1)]
    values = [sample.intensity_gco2e_per_kwh for sample in hours if sample is not None]
    assert got == pytest.approx(
        sum(values) / len(values) if values else recorded[-1].intensity_gco2e_per_kwh
    )


@given(value=st.floats(0, 2000))
def test_a_static_zone_has_a_ratio_of_one(value: float) -> None:
    """A value that never changes is its own average."""
    intensity = latest(monitor(TraceSource("static", (Sample(START, value),), loop=False)))

    assert intensity.ratio == 1.0
    assert intensity.average_gco2e_per_kwh == value


def test_a_zone_without_carbon_for_a_day_has_no_finite_ratio_when_carbon_comes_back() -> None:
    """A value over an average of 0 is infinite, not an error."""
    source = TraceSource("t", trace([(1, 0.0), (30, 10.0)]), loop=False)

    assert latest(monitor(source, START + 31 * HOUR)).ratio == float("inf")


def test_before_any_history_the_average_is_the_value_itself() -> None:
    """The first value has a ratio of 1."""
    source = TraceSource("t", trace([(1, 150.0), (1, 300.0)]), loop=False)
    first = latest(monitor(source, START + HOUR))

    assert (first.average_gco2e_per_kwh, first.ratio) == (150.0, 1.0)


@pytest.mark.parametrize(
    "source",
    [
        SyntheticSource(207.13, 69.23, seed=1, step=HOUR),
        TraceSource("t", trace([(1, 10.0 * hour) for hour in range(1, 25)]), loop=True),
    ],
    ids=["synthetic", "looped trace"],
)
def test_the_average_is_warm_from_the_first_value_where_the_source_has_a_past(
    source: Source,
) -> None:
    """The mean of the 24 values before, although the monitor was made this instant."""
    now = START + 5 * DAY
    past = [sample.intensity_gco2e_per_kwh for sample in samples(source, now - DAY, now - HOUR)]

    assert len(past) == 24
    assert latest(monitor(source, now)).average_gco2e_per_kwh == pytest.approx(sum(past) / 24)


@given(strides_min=st.lists(st.integers(1, 500), min_size=1, max_size=20))
@examples(0.08)
def test_what_is_learnt_does_not_depend_on_how_often_one_looks(strides_min: list[int]) -> None:
    """A late wake-up loses no change: replays at any speed-up have the same history."""
    source = SyntheticSource(207.13, 69.23, seed=5, step=timedelta(minutes=45))
    often, once, now = monitor(source), monitor(source), START
    for stride in strides_min:
        now += timedelta(minutes=stride)
        often.advance(now)
    once.advance(now)

    assert often.history(None, now) == once.history(None, now)
    assert often.latest == once.latest


def test_advance_returns_only_news() -> None:
    watched = monitor(SyntheticSource(207.13, 69.23, seed=5, step=HOUR))

    assert watched.advance(START + HOUR / 2) is None
    assert watched.advance(START + HOUR) is watched.latest
    assert watched.next_change() == START + 2 * HOUR


def test_history_is_a_half_open_interval_in_order() -> None:
    """A sample at the start belongs to it, one at the end does not."""
    watched = monitor(SyntheticSource(207.13, 69.23, seed=5, step=HOUR), START + DAY)
    past = watched.history(START, START + 3 * HOUR)

    assert [item.sample.since for item in past] == [START, START + HOUR, START + 2 * HOUR]


def test_no_more_of_a_past_is_read_than_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """History and averages are still those of a monitor that followed the source for days."""

    class Counted(TraceSource):
        reads = 0

        def at(self, when: datetime) -> Sample | None:
            self.reads += 1
            return super().at(when)

    monkeypatch.setattr("services.carbon.core.monitor.HISTORY_LENGTH", 100)
    minutes = tuple(Sample(START + n * HOUR / 60, value) for n, value in enumerate([5.0, 9.0, 4.0]))
    source = Counted("t", minutes, loop=True)
    window, now = HOUR, START + 2 * DAY
    followed = monitor(source, START, window)
    followed.advance(now)
    source.reads = 0

    fresh = monitor(source, now, window)

    assert source.reads <= 100 + 100 + 60 + 2
    assert fresh.history(None, now) == followed.history(None, now)
    assert len(fresh.history(None, now)) == 99, "and the one in force"


def test_history_is_bounded() -> None:
    """A month more of hours leaves as many as there were."""
    watched = monitor(SyntheticSource(207.13, 69.23, seed=5, step=HOUR))
    for day in range(1, 31):
        watched.advance(START + day * DAY)
    past = watched.history(None, START + 31 * DAY)

    assert len(past) == HISTORY / HOUR + 1
    assert past[0].sample.since == START + 30 * DAY - HISTORY

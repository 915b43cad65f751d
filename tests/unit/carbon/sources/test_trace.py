"""A replay gives back what was recorded, in order, over gaps and around the end."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.carbon.core.model import Sample
from services.carbon.core.sources.source import samples
from services.carbon.core.sources.trace import TraceSource
from tests.support.examples import examples

START = datetime(2022, 4, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)

TRACES = st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1000)), min_size=1, max_size=30).map(
    lambda steps: trace(*steps)
)


def trace(*steps: tuple[int, float]) -> tuple[Sample, ...]:
    """Return samples, each given as (hours since the one before, intensity)."""
    when, recorded = START - steps[0][0] * HOUR, []
    for hours, value in steps:
        when += hours * HOUR
        recorded.append(Sample(when, value))
    return tuple(recorded)


THREE = trace((1, 100.0), (1, 200.0), (1, 300.0))
GAP = trace((1, 100.0), (1, 200.0), (3, 300.0))


@given(recorded=TRACES, loop=st.booleans())
def test_a_replay_yields_every_sample_in_order(recorded: tuple[Sample, ...], loop: bool) -> None:
    source = TraceSource("t", recorded, loop=loop)

    assert tuple(samples(source, recorded[0].since, recorded[-1].since)) == recorded


@examples(0.4)
@given(recorded=TRACES, loop=st.booleans(), offset_h=st.floats(-100, 100))
def test_a_sample_holds_until_the_next_change(
    recorded: tuple[Sample, ...], loop: bool, offset_h: float
) -> None:
    source, when = TraceSource("t", recorded, loop=loop), START + offset_h * HOUR
    sample, change = source.at(when), source.next_change(when)

    assert sample is None or sample.since <= when
    if change is not None:
        assert change > when
        assert source.at(change - timedelta(microseconds=1)) == sample
        following = source.at(change)
        assert following is not None
        assert following.since == change


def test_a_gap_holds_the_last_value() -> None:
    source = TraceSource("t", GAP, loop=False)

    assert source.at(START + 3.5 * HOUR) == GAP[1]
    assert source.next_change(START + 3.5 * HOUR) == START + 4 * HOUR


def test_without_loop_nothing_is_before_the_first_and_the_last_holds_for_ever() -> None:
    source = TraceSource("t", THREE, loop=False)

    assert source.at(START - HOUR) is None
    assert source.next_change(START - HOUR) == START
    assert source.at(START + 1000 * HOUR) == THREE[-1]
    assert source.next_change(START + 2 * HOUR) is None


@pytest.mark.parametrize("repetition", [-2, -1, 1, 2])
def test_a_loop_repeats_before_the_first_and_after_the_last(repetition: int) -> None:
    source = TraceSource("t", THREE, loop=True)
    shift = repetition * 3 * HOUR

    assert list(samples(source, START + shift, START + shift + 2 * HOUR)) == [
        Sample(sample.since + shift, sample.intensity_gco2e_per_kwh) for sample in THREE
    ]


def test_a_loop_over_gaps_lets_the_last_sample_hold_as_long_as_most_do() -> None:
    source = TraceSource("t", trace((1, 1.0), (1, 2.0), (1, 3.0), (5, 4.0)), loop=True)

    assert source.next_change(START + 7 * HOUR) == START + 8 * HOUR


def test_one_sample_is_a_constant_even_in_a_loop() -> None:
    source = TraceSource("t", THREE[:1], loop=True)

    assert source.at(START + HOUR) == THREE[0]
    assert source.next_change(START) is None


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        TraceSource("t", (), loop=True)

"""Two readings of agents' and routers' counters make a measurement."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement
from services.planner.core.model import Segment, SegmentKind
from services.planner.core.online_search.measurement import (
    Answers,
    Observed,
    Reading,
    SegmentCounters,
    measured,
)
from tests.support.planner import fleets

PROBLEM = fleets.problem(fleets.fleet((fleets.pool(), 1)), [fleets.model()])
KIND, OTHER = PROBLEM.catalog[0], PROBLEM.catalog[-1]


def segment(name: str, kind: SegmentKind = KIND) -> Segment:
    return Segment(name, kind, "node-0", "GPU-0-0", Placement("1g.5gb", 0), 0.5)


def test_segments_of_one_kind_are_measured_together() -> None:
    before = Reading(10.0, {"a": SegmentCounters(5, 2, 0.5, 50.0)})
    after = Reading(
        40.0,
        {
            "a": SegmentCounters(15, 6, 1.5, 90.0),
            "b": SegmentCounters(4, 4, 0.5, 10.0),  # it began meanwhile
            "c": SegmentCounters(7, 1, 0.25, 3.0),
            "gone": SegmentCounters(100, 100, 100.0, 100.0),
        },
    )
    found = measured(before, after, [segment("a"), segment("b"), segment("c", OTHER)])

    assert found.span_s == 30.0
    assert found.observed == {
        KIND: Observed(2, 14, 8, 1.5, 50.0),
        OTHER: Observed(1, 7, 1, 0.25, 3.0),
    }
    assert found.segments == {KIND: 2, OTHER: 1}


def test_a_segment_whose_account_was_lost_says_nothing() -> None:
    """A segment whose agent restarted or whose node is away counts as present and idle."""
    before = Reading(
        0.0, {"a": SegmentCounters(5, 5, 5.0, 5.0), "b": SegmentCounters(5, 5, 5.0, 5.0)}
    )
    after = Reading(9.0, {"a": SegmentCounters(9, 9, 1.0, 9.0)})
    found = measured(before, after, [segment("a"), segment("b")])

    assert found.observed == {KIND: Observed(2, 0, 0, 0.0, 0.0)}


@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.floats(1e-3, 10.0), st.booleans()),
        min_size=1,
        max_size=20,
    )
)
def test_latency_is_the_mean_of_the_windows_of_the_span_weighted_by_answers(
    windows: list[tuple[int, float, bool]],
) -> None:
    """Windows of before the first reading do not count; without answers there is no latency."""
    earlier, within = Answers(), []
    for count, latency_s, inside in windows:
        if inside:
            within.append((count, latency_s))
        else:
            earlier = earlier.plus(count, latency_s)
    later = earlier
    for count, latency_s in within:
        later = later.plus(count, latency_s)
    found = measured(Reading(0.0, {}, {"m": earlier}), Reading(1.0, {}, {"m": later}), [])
    answers = sum(count for count, _ in within)
    weighted_s = sum(count * latency_s for count, latency_s in within)

    if answers:
        assert found.latency_s["m"] == pytest.approx(weighted_s / answers, abs=1e-6)
    else:
        assert found.latency_s == {}


def test_a_model_without_earlier_requests_has_a_latency_too() -> None:
    found = measured(Reading(0.0), Reading(1.0, {}, {"m": Answers().plus(4, 0.25)}), [])

    assert found.latency_s == {"m": 0.25}

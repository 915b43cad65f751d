"""From counts in shared memory to what is known of a latency."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.clock_loop.core.decide import GovernedSegment
from services.gpuagent.clock_loop.core.latency_window import LatencyRecord, LatencyWindow
from services.gpuagent.shared_memory.latency_counters import (
    SHORTEST_S,
    SIZES,
    Counts,
    largest_s,
    size_of,
)

OBJECTIVE_S = 50.0


def counted(*latencies_s: float) -> Counts:
    counts = np.zeros(SIZES, np.uint64)
    for latency_s in latencies_s:
        counts[size_of(latency_s)] += 1
    return counts


@given(st.floats(SHORTEST_S, 60.0))
def test_a_latency_is_read_back_within_two_percent(latency_s: float) -> None:
    assert largest_s(counted(latency_s), 1) == pytest.approx(latency_s, rel=0.0201)


@given(st.floats(-1.0, 1e9))
def test_any_latency_has_a_place(latency_s: float) -> None:
    assert 0 <= size_of(latency_s) < SIZES


@given(st.lists(st.floats(SHORTEST_S, 60.0), min_size=1, max_size=50), st.data())
def test_the_rank_from_the_largest_is_as_in_a_sorted_list(
    latencies_s: list[float], data: st.DataObject
) -> None:
    rank = data.draw(st.integers(1, len(latencies_s)))
    expected_s = sorted(latencies_s, reverse=True)[rank - 1]

    assert largest_s(counted(*latencies_s), rank) == pytest.approx(expected_s, rel=0.0201)


def window(*samples: Counts, percentile: float = 90.0, every_s: float = 0.5) -> LatencyWindow:
    """Return a window that has seen these samples of new requests."""
    segment = GovernedSegment("s", "m", percentile, OBJECTIVE_S)
    made, total = LatencyWindow(segment), counted()
    made.add(0.0, total)
    for number, sample in enumerate(samples, 1):
        total = total + sample
        made.add(number * every_s, total)
    return made


def test_without_a_request_nothing_is_known_until_long_silence() -> None:
    assert window().seen().latency_s is None
    assert window(counted()).seen().latency_s is None
    assert window(*[counted()] * 100).seen().latency_s is None
    silence = window(*[counted()] * 115).seen()
    assert (silence.latency_s, silence.proven_s, silence.rate_rps) == (0.0, None, 0.0)


def test_two_slow_requests_among_many_prove_nothing_and_three_do() -> None:
    fast = [0.01] * 17

    assert (window(counted(*fast, 0.2, 0.2)).seen().proven_s or 0) < 0.02
    assert (window(counted(*fast, 0.2, 0.2, 0.2)).seen().proven_s or 0) > 0.19


def test_where_all_requests_are_slow_even_one_is_proof() -> None:
    """A model with one request in ten seconds has an objective too."""
    assert (window(counted(0.2)).seen().proven_s or 0) > 0.19


def test_a_percentile_is_known_once_enough_requests_could_have_been_late() -> None:
    """At p90, three late ones of thirty are what the objective allows."""
    assert window(counted(*[0.01] * 29)).seen().latency_s is None
    assert window(counted(*[0.01] * 30)).seen().latency_s == pytest.approx(0.01, rel=0.02)


def test_where_requests_are_few_a_percentile_is_known_after_a_minute_by_the_slowest() -> None:
    """A handful of seconds would hold two or three of them, and say nothing of one in a hundred."""
    sparse = [counted(0.01), *[counted()] * 9]
    slow = [counted(0.08), *[counted()] * 9]

    assert window(*sparse * 10).seen().latency_s is None
    assert window(*slow, *sparse * 11, percentile=99.0).seen().latency_s == pytest.approx(
        0.08, rel=0.02
    )
    assert (window(*slow, *sparse * 11).seen().proven_s or 0) < 0.02


def test_what_was_seen_at_another_clock_hints_but_proves_nothing() -> None:
    """Latencies are taken to have grown as the clock says; the new clock has a say of its own."""
    made = window(*[counted(0.01)] * 115)
    made.restart(1.5)
    assert made.seen().latency_s is None
    for number in range(116, 128):
        made.add(number * 0.5, counted(*[0.01] * 115))
    seen = made.seen()

    assert seen.proven_s is None
    assert seen.latency_s == pytest.approx(0.015, rel=0.05)
    assert seen.latency_s is not None
    assert seen.latency_s >= 0.015 / 1.02


def test_no_older_sample_counts_than_the_percentile_needs() -> None:
    """A burst of long ago must not hide in the present, nor the present in it."""
    slow, fast = counted(*[0.5] * 40), counted(*[0.01] * 40)

    assert window(slow, fast).seen().proven_s == pytest.approx(0.01, rel=0.02)
    assert window(slow, *[fast] * 10).seen().latency_s == pytest.approx(0.01, rel=0.02)
    assert window(slow, fast).seen().rate_rps == pytest.approx(80.0)
    assert window(fast, slow).seen().latency_s == pytest.approx(0.5, rel=0.02)


def test_samples_grow_old_and_at_another_clock_lateness_is_proven_again() -> None:
    made = window(counted(*[0.5] * 20), *[counted()] * 125)
    assert made.seen().rate_rps == 0.0

    made = window(counted(*[0.5] * 40))
    made.restart(1.0)
    made.add(1.0, counted(*[0.5] * 40))
    assert made.seen().proven_s is None


def test_counts_that_began_again_count_from_there() -> None:
    """After the ledger is rebuilt no difference may be negative."""
    made = window(counted(*[0.5] * 40))
    made.add(1.0, counted(*[0.01] * 39))

    assert made.seen().proven_s == pytest.approx(0.01, rel=0.02)


def test_a_rare_models_slow_requests_are_remembered_for_longer_than_a_minute() -> None:
    """One request in five seconds: of the last twenty minutes the slowest says what p99 may be."""
    sparse = [counted(0.01), *[counted()] * 9]
    slow = [counted(0.08), *[counted()] * 9]
    seen = window(*slow, *sparse * 200, percentile=99.0).seen()

    assert seen.latency_s == pytest.approx(0.08, rel=0.02)


@given(late=st.integers(0, 60), answered=st.integers(1, 3000), more=st.integers(1, 20))
def test_the_bound_of_the_percentile_is_not_below_it(late: int, answered: int, more: int) -> None:
    """The bound does not fall as more requests come late; a spent budget stays spent meanwhile."""
    late = min(late, answered)
    record = LatencyRecord(0.01)
    if answered > late:
        record.add(counted(*[0.01] * (answered - late)), 0, 1.0)
    if late:
        record.add(counted(*[1.0] * late), late, 1.0)
    if late > 0.01 * answered:
        assert record.bound_s(1.0) > 0.9
        assert record.bound_s(2.0) == pytest.approx(2 * record.bound_s(1.0))
    before, spent = record.bound_s(1.0), record.budget_spent
    record.add(counted(*[1.0] * more), more, 1.0)
    assert record.bound_s(1.0) >= before
    assert record.budget_spent >= spent


def test_late_requests_spend_the_budget_of_a_rare_model_until_others_were_in_time() -> None:
    """Half as many as the objective allows and one, in its last thousand requests."""
    record = LatencyRecord(0.01)
    record.add(counted(*[0.01] * 100), 0, 1.0)
    record.add(counted(1.0, 1.0), 2, 1.0)
    assert record.budget_spent
    for _ in range(200):
        record.add(counted(0.01), 0, 1.0)
    assert not record.budget_spent


def test_a_segment_without_further_requests_has_no_record() -> None:
    """Late requests of before must not hold the clock up for ever."""
    made = window(*[counted(*[60.0] * 3)] * 3, percentile=99.0)
    assert made.seen().budget_spent
    counts = counted(*[60.0] * 9)
    for at_s in range(2, 620):
        made.add(float(at_s), counts)
    assert not made.seen().budget_spent
    assert made.seen().latency_s == 0.0

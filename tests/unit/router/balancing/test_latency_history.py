"""Latency estimation from history: streaming, bounded, sound for sizes never seen."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.core.balancing.latency_history import LatencyHistory

SECONDS = st.floats(0.001, 10)


@given(st.lists(SECONDS, min_size=1, max_size=60))
def test_the_estimate_of_a_size_is_the_average_of_its_past(latencies_s: list[float]) -> None:
    """Section IV-B, as long as nothing is forgotten (up to 64 requests)."""
    history = LatencyHistory()
    for latency_s in latencies_s:
        history.add(8, latency_s, 2 * latency_s)
        history.add(9, 99.0)

    found = history.estimate(8)

    assert found is not None
    mean_s = sum(latencies_s) / len(latencies_s)
    assert found.latency_s == pytest.approx(mean_s)
    assert found.energy_j == pytest.approx(2 * mean_s)


@given(st.integers(1, 400))
def test_sizes_never_seen_lie_on_the_line_through_those_that_were(size: int) -> None:
    history = LatencyHistory()
    for seen in range(10, 60, 7):
        history.add(seen, 0.01 + 0.002 * seen, 0.5 * seen)

    found = history.estimate(size)

    assert found is not None
    assert found.latency_s == pytest.approx(0.01 + 0.002 * size)
    assert found.energy_j == pytest.approx(0.5 * size, abs=1e-6)


@given(seen=st.integers(1, 400), size=st.integers(1, 400))
def test_of_one_size_the_others_count_as_the_least_they_can_be(seen: int, size: int) -> None:
    """An overestimated instance would never be tried: a job did without its A100 for good."""
    history = LatencyHistory()
    history.add(seen, 0.01 * seen)

    found = history.estimate(size)

    assert found is not None
    assert found.latency_s == pytest.approx(0.01 * min(size, seen))


@given(st.lists(st.tuples(st.integers(1, 10**6), SECONDS), max_size=300))
def test_it_remembers_no_more_sizes_than_it_may(seen: list[tuple[int, float]]) -> None:
    history = LatencyHistory(max_sizes=16)
    for size, latency_s in seen:
        history.add(size, latency_s)

    assert len(history) <= 16


def test_a_change_shows_after_some_hundred_requests() -> None:
    history = LatencyHistory()
    for latency_s in [1.0] * 1000 + [2.0] * 300:
        history.add(1, latency_s)

    found = history.estimate(1)

    assert found is not None
    assert found.latency_s == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("latency_s", [math.nan, math.inf, -1.0])
def test_figures_that_are_none_are_ignored(latency_s: float) -> None:
    history = LatencyHistory()
    history.add(1, latency_s)

    assert history.estimate(1) is None

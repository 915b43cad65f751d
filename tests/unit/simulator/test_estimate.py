"""From what was simulated to what happened."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.simulator.stats.estimate import Latencies, active_error_j, quantile_range_s, weights
from services.simulator.stats.sampled_intervals import Meters, SampledInterval


def interval(
    latency_s: list[float], skipped: int = 0, energy_j: float = 0.0, failed: int = 0, table: int = 1
) -> SampledInterval:
    """An interval of one model."""
    made = SampledInterval(0.0, 1.0, 2.0, table, {})
    made.latency_s["m"].extend(latency_s)
    made.failures.update({("m", "QUEUE_FULL"): failed} if failed else {})
    made.skipped = {"m": skipped}
    made.arrived = {"m": len(latency_s) + failed + skipped}
    made.spent = Meters({}, {("n", "m"): energy_j})
    return made


intervals = st.lists(
    st.builds(
        interval,
        st.lists(st.floats(0.001, 1), max_size=5),
        st.integers(0, 50),
        failed=st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)


@given(intervals)
def test_what_is_represented_is_all_that_arrived(found: list[SampledInterval]) -> None:
    """Weighted requests sum to the simulated and the skipped, even where an interval saw no end."""
    weight = weights(found, "m")

    represented = sum(w * each.ended("m") for w, each in zip(weight, found, strict=True))
    ended = sum(each.ended("m") for each in found)
    skipped = sum(each.skipped["m"] for each in found)
    assert represented == pytest.approx(ended + skipped if ended else 0)
    assert np.all(weight >= 1)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=50), st.floats(0.01, 0.99))
def test_a_quantile_of_equal_weights_splits_the_requests(
    latency_s: list[float], share: float
) -> None:
    """Without skipped time, a quantile is that of the list."""
    found = [interval(latency_s)]
    latencies = Latencies.of(found, weights(found, "m"), "m")

    quantile_s = latencies.quantile_s(share)

    assert quantile_s is not None
    assert np.mean(np.array(latency_s) <= quantile_s) >= share - 1e-9
    assert np.mean(np.array(latency_s) < quantile_s) <= share + 1e-9
    assert latencies.above(quantile_s) == pytest.approx(np.mean(np.array(latency_s) > quantile_s))


def test_a_request_that_stands_for_nine_others_counts_tenfold() -> None:
    """Weights are those of the requests that were not simulated."""
    found = [interval([0.1] * 10), interval([0.9], skipped=9)]
    latencies = Latencies.of(found, weights(found, "m"), "m")

    assert latencies.above(0.5) == pytest.approx(0.5)
    assert latencies.quantile_s(0.49) == 0.1
    assert latencies.quantile_s(0.51) == 0.9


def test_without_answers_nothing_is_said() -> None:
    """No answers have no quantile."""
    latencies = Latencies.of([interval([])], np.ones(1), "m")

    assert latencies.quantile_s(0.5) is None
    assert latencies.above(0.5) == 0


def test_the_error_holds_the_truth_in_nineteen_of_twenty_samples() -> None:
    """1,000 samples of a noisy energy per request: the 95 % range holds the true total."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        per_request_j = rng.normal(2.0, 0.2, 30)
        found = [interval([0.1] * 10, skipped=90, energy_j=10 * each) for each in per_request_j]
        error_j = active_error_j(found, "m")
        assert error_j is not None
        held += abs(sum(90 * per_request_j) - 2.0 * 30 * 90) <= error_j
    assert held == pytest.approx(950, abs=35)


def test_an_error_cannot_be_estimated_from_one_cell_and_is_none_where_nothing_was_skipped() -> None:
    assert active_error_j([interval([0.1], skipped=5, energy_j=1.0)], "m") is None
    assert active_error_j([interval([0.1], energy_j=1.0)], "m") == 0


def test_cells_of_different_plans_are_not_compared() -> None:
    """A change of plan is no noise."""
    found = [
        interval([0.1] * 10, skipped=90, energy_j=energy_j, table=table)
        for table, energy_j in ((1, 1.0), (1, 1.0), (2, 50.0), (2, 50.0))
    ]

    assert active_error_j(found, "m") == 0


def test_the_range_of_a_quantile_holds_it() -> None:
    """The interval has the estimate and the true quantile in it, and is narrow."""
    rng = np.random.default_rng(0)
    found = [interval(rng.exponential(0.1, 200).tolist(), skipped=1800) for _ in range(40)]
    latencies = Latencies.of(found, weights(found, "m"), "m")

    bounds, quantile_s = quantile_range_s(found, latencies, "m", 0.95), latencies.quantile_s(0.95)

    assert bounds is not None
    assert quantile_s is not None
    assert bounds.low <= quantile_s <= bounds.high
    assert bounds.low <= -0.1 * math.log(0.05) <= bounds.high
    assert bounds.high / bounds.low < 1.15

"""Counts of a model: what the window holds is never lost and never counted twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.receipts import Receipt
from services.router.tally import Answered, Tally


def answered(
    latency_s: float, *, batch_size: int = 1, variant: str = "v", accuracy: float = 0.9
) -> Answered:
    receipt = Receipt(energy_j=2.0, idle_energy_j=1.0, method="model", carbon_gco2e=0.5)
    return Answered(latency_s, latency_s / 4, latency_s / 2, batch_size, variant, accuracy, receipt)


@given(st.lists(st.lists(st.floats(1e-4, 30.0), max_size=20), max_size=5))
def test_windows_add_up_to_the_counts_since_start(windows: list[list[float]]) -> None:
    tally = Tally(slo_latency_s=0.1)
    rolled = []
    for latencies_s in windows:
        for latency_s in latencies_s:
            tally.arrive()
            tally.accept()
            tally.answer(answered(latency_s), now_s=1.0)
        rolled.append(tally.roll())

    total = tally.since_start()

    everything = [latency_s for latencies_s in windows for latency_s in latencies_s]
    assert total.answered == total.arrivals == total.accepted == len(everything)
    assert total.late == sum(latency_s > 0.1 for latency_s in everything)
    assert sum(window.answered for window in rolled) == total.answered
    assert sum(total.by_variant.values()) == total.answered
    assert tally.energy_j == pytest.approx(2.0 * len(everything))


@given(st.lists(st.floats(1e-4, 30.0), min_size=1, max_size=200), st.sampled_from([50.0, 95.0]))
def test_quantiles_are_within_one_percent_of_the_exact_ones(
    latencies_s: list[float], percentile: float
) -> None:
    """Over windows that were rolled in between, too."""
    tally = Tally(slo_latency_s=0.1)
    for number, latency_s in enumerate(latencies_s):
        tally.answer(answered(latency_s), now_s=0.0)
        if number % 7 == 0:
            tally.roll()

    found = tally.since_start().quantiles_s([percentile])[percentile]

    exact = sorted(latencies_s)[int(percentile / 100 * (len(latencies_s) - 1))]
    assert found == pytest.approx(exact, rel=0.0101)


def test_a_window_without_answers_has_no_quantiles() -> None:
    tally = Tally(slo_latency_s=0.1)
    tally.arrive()
    tally.failure(0.01)

    window = tally.roll()

    assert window.quantiles_s([50.0]) == {}
    assert (window.arrivals, window.failed, tally.fail.count) == (1, 1, 1)


def test_requests_of_one_batch_are_one_execution() -> None:
    tally = Tally(slo_latency_s=0.1)
    for _ in range(8):
        tally.answer(answered(0.01, batch_size=4), now_s=0.0)
    tally.answer(answered(0.01, batch_size=1), now_s=0.0)

    assert tally.executions == 3


def test_accuracy_is_the_mean_over_requests() -> None:
    tally = Tally(slo_latency_s=0.1)
    assert tally.accuracy == 0.0
    for accuracy in (0.9, 0.9, 0.6):
        tally.answer(answered(0.01, accuracy=accuracy), now_s=0.0)

    assert tally.accuracy == pytest.approx(0.8)

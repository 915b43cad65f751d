"""Counts of a model: what the window holds is never lost and never counted twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.request_cost import Cost, Usage
from services.router.core.accounting.counters import MAX_SECONDS
from services.router.core.accounting.model_stats import ModelStats
from services.router.core.accounting.receipt_watchers import Receipt
from services.router.core.model import Instance
from tests.support.examples import examples


def answer(
    stats: ModelStats,
    latency_s: float,
    *,
    now_s: float = 0.0,
    batch_size: int = 1,
    items: int = 1,
    variant: str = "v",
    accuracy: float = 0.9,
) -> None:
    """Count one answer of 2 J, in time within 0.1 s."""
    instance = Instance("h:1", "s", "m", variant, accuracy, 1.0, 1)
    cost = Cost(2.0, 1.0, "model", latency_s / 4, latency_s / 2, batch_size, items)
    receipt = Receipt(now_s, instance, latency_s, latency_s / 4, cost, carbon_gco2e=0.5)
    stats.answer(receipt, in_time=latency_s <= 0.1)


@examples(0.4)
@given(st.lists(st.lists(st.floats(1e-4, 30.0), max_size=20), max_size=5))
def test_windows_add_up_to_the_counts_since_start(windows: list[list[float]]) -> None:
    stats = ModelStats()
    rolled = []
    for latencies_s in windows:
        for number, latency_s in enumerate(latencies_s):
            stats.arrivals += 1
            stats.accepted += 1
            answer(stats, latency_s, variant="ab"[number % 2])
        rolled.append(stats.roll())

    total = stats.since_start()

    everything = [latency_s for latencies_s in windows for latency_s in latencies_s]
    assert total.answered == total.arrivals == total.accepted == len(everything)
    assert total.late == sum(latency_s > 0.1 for latency_s in everything)
    assert sum(window.answered for window in rolled) == total.answered
    assert sum(window.late for window in rolled) == total.late
    assert sum(total.by_variant.values()) == total.answered
    for variant, count in total.by_variant.items():
        assert count == sum(window.by_variant[variant] for window in rolled)
    assert stats.total.energy_j == pytest.approx(2.0 * len(everything))
    assert stats.total.latency.total_s == pytest.approx(sum(everything))


@given(st.lists(st.floats(1e-4, 30.0), min_size=1, max_size=200), st.sampled_from([50.0, 95.0]))
def test_quantiles_of_a_window_are_within_one_percent_of_the_exact_ones(
    latencies_s: list[float], percentile: float
) -> None:
    """Latencies counted before the window are not in them."""
    stats = ModelStats()
    for latency_s in (1e-3, 20.0, 20.0):
        answer(stats, latency_s)
    stats.roll()
    for latency_s in latencies_s:
        answer(stats, latency_s)

    found = stats.roll().latency.quantiles([percentile])[percentile]

    exact = sorted(latencies_s)[int(percentile / 100 * (len(latencies_s) - 1))]
    assert found == pytest.approx(exact, rel=0.0101)


def test_a_window_without_answers_has_no_quantiles() -> None:
    stats = ModelStats()
    stats.arrivals += 1
    stats.failure("UNAVAILABLE", now_s=1.0, latency_s=0.01)

    window = stats.roll()

    assert window.latency.quantiles([50.0]) == {}
    assert (window.arrivals, window.failed, stats.fail.count) == (1, 1, 1)


@pytest.mark.parametrize(
    ("status", "failures"),
    [
        *((each, 0) for each in ("CANCELLED", "INVALID_ARGUMENT", "NOT_FOUND", "UNAUTHENTICATED")),
        *((each, 1) for each in ("UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "UNKNOWN")),
        ("RESOURCE_EXHAUSTED", 1),
    ],
)
def test_what_clients_cancel_or_get_wrong_is_no_failure(status: str, failures: int) -> None:
    """Counted by its status, over, and in no count or time of failures."""
    stats = ModelStats()
    stats.arrivals += 1
    stats.failure(status, now_s=1.0, latency_s=0.25)

    assert (stats.fail.count, stats.fail.total_s) == (failures, failures * 0.25)
    assert stats.roll().failed == failures
    assert stats.statuses == {status: 1}
    assert stats.pending == 0


def test_items_of_one_batch_are_one_execution() -> None:
    """Eight requests of one item in batches of four, and one of three items in a batch of six."""
    stats = ModelStats()
    for _ in range(8):
        answer(stats, 0.01, batch_size=4)
    answer(stats, 0.01, batch_size=6, items=3)
    answer(stats, 0.01, batch_size=6, items=3)

    assert stats.executions == 3
    assert stats.items == 14
    assert stats.total.answered == 10
    # Two batches of four and one of six, of 5 ms each.
    assert {s: span.total_s / s for s, span in stats.batches.items()} == pytest.approx(
        {4: 0.01, 6: 0.005}
    )


def test_accuracy_is_the_mean_over_requests() -> None:
    stats = ModelStats()
    assert stats.total.accuracy == 0.0
    for accuracy in (0.9, 0.9, 0.6):
        answer(stats, 0.01, accuracy=accuracy)

    assert stats.total.accuracy == pytest.approx(0.8)


def test_pending_requests_are_those_that_have_not_ended() -> None:
    stats = ModelStats()
    for _ in range(5):
        stats.arrivals += 1
    answer(stats, 0.01)
    stats.failure("CANCELLED", now_s=0.0, latency_s=0.1)

    assert stats.pending == 3


# ---- the objective over windows ----------------------------------------------------------------


def test_late_answers_and_errors_that_are_ours_burn_the_budget() -> None:
    """94 good, 3 late, 3 unavailable; a client's mistakes and departures do not count."""
    stats = ModelStats(windows_s=(60.0,))
    for number in range(97):
        answer(stats, 0.2 if number < 3 else 0.01, now_s=1.0)
    for status in ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"):
        stats.failure(status, now_s=1.0, latency_s=0.1)
    for status in ("INVALID_ARGUMENT", "NOT_FOUND", "CANCELLED"):
        stats.failure(status, now_s=1.0, latency_s=0.1)

    (level,) = stats.service_levels(2.0, 95.0)

    assert stats.good_and_bad == (94, 6)
    assert level.attainment == pytest.approx(0.94)
    assert level.burn_rate == pytest.approx(0.06 / 0.05)


@given(
    st.lists(st.tuples(st.floats(0, 400), st.sampled_from([0.01, 0.5])), max_size=60),
    st.floats(0, 600),
)
def test_a_window_holds_what_happened_in_it_and_at_most_a_step_more(
    gaps: list[tuple[float, float]], silence_s: float
) -> None:
    """The window is 300 s, a step 10 s; checked against the list of all events."""
    stats = ModelStats(windows_s=(300.0, 3000.0))
    now_s, events = 1000.0, []
    for gap_s, latency_s in gaps:
        now_s += gap_s
        answer(stats, latency_s, now_s=now_s)
        events.append((now_s, latency_s > 0.1))
    now_s += silence_s

    for level in stats.service_levels(now_s, 95.0):
        start_s = now_s - level.window_s
        inside = [late for at_s, late in events if at_s > start_s]
        before = [late for at_s, late in events if start_s - 10.0 <= at_s <= start_s]
        possible = [_attainment(before[n:] + inside) for n in range(len(before) + 1)]
        assert any(level.attainment == pytest.approx(wanted) for wanted in possible)


def _attainment(late: list[bool]) -> float:
    return 1 - sum(late) / len(late) if late else 1.0


def test_the_share_served_is_of_late_not_since_start() -> None:
    stats = ModelStats(windows_s=(60.0, 600.0))
    for _ in range(30):
        answer(stats, 0.01, now_s=0.0, variant="old")
    for second in range(100, 200):
        answer(stats, 0.01, now_s=float(second), variant="ab"[second % 4 == 0])

    served = stats.served(200.0)

    assert served["old"] == 0.0
    assert served["a"] == pytest.approx(0.75, abs=0.02)
    assert sum(served.values()) == pytest.approx(1.0)
    assert stats.served(1000.0) == {"old": 0.0, "a": 0.0, "b": 0.0}


def test_tokens_per_second_are_of_the_shortest_window() -> None:
    """A text of 600 tokens in the last minute counts; one of an hour ago does not."""
    stats = ModelStats(windows_s=(60.0, 3600.0))
    for now_s, tokens in ((10.0, 5000), (3600.0, 600)):
        cost = Cost(1.0, 0.0, "model", 0.0, 1.0, 1, usage=Usage(5, tokens, 0.1, 0.01))
        instance = Instance("h:1", "s", "m", "v", 1.0, 1.0, 1)
        stats.answer(Receipt(now_s, instance, 1.0, 0.0, cost, None), in_time=True)

    requests_per_s, tokens_per_s = stats.rates(3610.0, 3610.0)
    assert requests_per_s == pytest.approx(1 / 60)
    assert tokens_per_s == pytest.approx(10.0)
    assert stats.total.tokens.output_tokens == 5600


def test_seconds_are_counted_until_they_are_reported() -> None:
    """Each second is reported once, whole; unreported seconds are bounded."""
    stats = ModelStats()
    for second in (10, 10, 11, 13):
        stats.arrive(second)

    assert stats.arrivals == 4
    assert stats.per_second.take(range(10, 13)) == [2, 1, 0]
    stats.arrive(13)
    assert stats.per_second.take(range(12, 14)) == [0, 2]
    assert stats.per_second.take(range(14, 14)) == []

    for second in range(1000):
        stats.arrive(second)
    assert sum(stats.per_second.take(range(1000))) == MAX_SECONDS

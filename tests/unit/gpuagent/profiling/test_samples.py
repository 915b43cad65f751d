"""When there are enough batches, and what they say."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.profiling.core.samples import Effort, Samples, Timed
from services.kit.errors import InvalidArgument
from services.kit.profiles.core.measurement import Measurement

EFFORT = Effort(
    warm_up_s=1.0, warm_up_batches=4, least_s=2.0, least_batches=10, most_s=5.0, error=0.01
)
POINT = Measurement("a100-40gb", "7g.40gb", 8, 1)


def steady(samples: Samples, workers: int, latency_s: float, until_s: float) -> None:
    """Run workers back to back, each a little after the one before."""
    ends = sorted(
        (latency_s * (number + worker / workers), f"worker-{worker}")
        for worker in range(workers)
        for number in range(1, int(until_s / latency_s) + 1)
    )
    for now_s, worker in ends:
        samples.add(worker, Timed(latency_s, 2.0, "model"), now_s)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_steady_worker_is_summed_up_exactly(workers: int) -> None:
    samples = Samples(EFFORT, items=8, began_s=0.0)
    steady(samples, workers, 0.125, 6.0)
    found = samples.added_to(POINT)

    assert samples.enough(6.0)
    assert found.latency_s == found.latency_p50_s == found.latency_p95_s == 0.125
    assert found.latency_std_s == 0.0
    assert found.throughput_rps == pytest.approx(workers * 8 / 0.125)
    assert (found.energy_j, found.energy_method) == (2.0, "model")


def test_batches_of_the_warm_up_do_not_count() -> None:
    """Ten times slower at first, as where kernels are compiled: no trace of it is left."""
    samples = Samples(EFFORT, items=1, began_s=0.0)
    for number in range(4):
        samples.add("w", Timed(1.0, 50.0, "counter"), number + 1.0)
    for number in range(20):
        samples.add("w", Timed(0.1, 2.0, "counter"), 4.1 + number / 10)

    assert samples.added_to(POINT).latency_s == pytest.approx(0.1)
    assert samples.added_to(POINT).energy_j == pytest.approx(2.0)


def test_time_count_and_error_must_all_be_reached() -> None:
    samples = Samples(EFFORT, items=1, began_s=0.0)
    for number in range(4):
        samples.add("w", Timed(0.1, 1.0, "model"), 1.0 + number / 10)
    enough = []
    for number in range(80):
        latency_s = 0.1 if number % 2 else 0.12
        samples.add("w", Timed(latency_s, 1.0, "model"), 1.4 + number / 10)
        enough.append(samples.enough(1.4 + number / 10))
    # 9 % of standard deviation: 1 % of error takes about 83 batches, or the longest time.
    assert enough.index(True) == 49


def test_a_batch_longer_than_the_longest_time_is_measured_all_the_same() -> None:
    samples = Samples(EFFORT, items=1, began_s=0.0)
    for number in range(1, 5):
        samples.add("w", Timed(60.0, 1.0, "model"), 60.0 * number)
    assert not samples.enough(240.0)
    samples.add("w", Timed(60.0, 1.0, "model"), 300.0)
    assert not samples.enough(300.0)
    samples.add("w", Timed(60.0, 1.0, "model"), 360.0)
    assert samples.enough(360.0)
    assert samples.added_to(POINT).throughput_rps == pytest.approx(1 / 60)


@given(st.lists(st.floats(0.001, 10.0), min_size=2, max_size=60))
def test_the_summary_is_what_a_library_says(latencies_s: list[float]) -> None:
    effort = Effort(warm_up_s=0, warm_up_batches=1, least_s=0, most_s=1e9, error=0.0)
    samples = Samples(effort, items=1, began_s=0.0)
    samples.add("w", Timed(1.0, 1.0, "model"), 0.0)
    for number, latency_s in enumerate(latencies_s, start=1):
        samples.add("w", Timed(latency_s, 1.0, "model"), float(number))
    found = samples.added_to(POINT)

    assert found.batches == len(latencies_s)
    assert found.latency_s == pytest.approx(statistics.fmean(latencies_s))
    assert found.latency_std_s == pytest.approx(statistics.stdev(latencies_s))
    assert min(latencies_s) <= found.latency_p50_s <= found.latency_p95_s * (1 + 1e-12)
    assert found.latency_p95_s <= max(latencies_s) * (1 + 1e-12)
    running = samples._error() * found.latency_s * len(latencies_s) ** 0.5
    assert running == pytest.approx(found.latency_std_s, abs=1e-6)


def test_an_effort_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="least_s"):
        Effort(least_s=5, most_s=2)

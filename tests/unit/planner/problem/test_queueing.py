"""The latency prediction against a simulated queue, and at its edges."""

import heapq
import math
import random
from collections import deque
from itertools import pairwise

import pytest

from services.planner.core.problem.queueing import Station, latency_s


def station(processes: int, batch: int, batch_s: float, utilisation: float) -> Station:
    capacity_rps = processes * batch / batch_s
    return Station(processes, capacity_rps, batch_s, utilisation * capacity_rps)


def simulated_s(where: Station, percentile: float, requests: int = 40_000) -> float:
    """Poisson arrivals, late binding, batches of what waits, full-batch service times."""
    draw = random.Random(1)
    batch = round(where.capacity_rps * where.batch_s / where.processes)
    free_at = [0.0] * where.processes
    latencies: list[float] = []
    waiting: deque[float] = deque()
    clock_s = 0.0
    arrivals = []
    for _ in range(requests):
        clock_s += draw.expovariate(where.load_rps)
        arrivals.append(clock_s)
    for arrived_s, next_s in pairwise([*arrivals, math.inf]):
        waiting.append(arrived_s)
        while waiting and free_at[0] < next_s:
            start_s = max(heapq.heappop(free_at), waiting[0])
            taken = [waiting.popleft() for _ in range(batch) if waiting and waiting[0] <= start_s]
            latencies += [start_s + where.batch_s - each for each in taken]
            heapq.heappush(free_at, start_s + where.batch_s)
    return sorted(latencies)[int(len(latencies) * percentile / 100)]


@pytest.mark.parametrize("utilisation", [0.3, 0.5, 0.7, 0.85])
@pytest.mark.parametrize(("processes", "batch"), [(1, 1), (4, 1), (12, 1), (3, 8), (12, 16)])
def test_the_prediction_is_near_a_simulated_queue(
    processes: int, batch: int, utilisation: float
) -> None:
    """p95 within -25 % .. +40 %, for single requests and for batches, one to twelve processes."""
    where = station(processes, batch, 0.02, utilisation)
    predicted = latency_s([where], 95.0)
    simulated = simulated_s(where, 95.0)
    assert 0.75 * simulated <= predicted <= 1.4 * simulated


def test_latency_is_infinite_from_capacity_on() -> None:
    assert latency_s([], 95.0) == math.inf
    assert latency_s([station(2, 4, 0.02, 1.0)], 95.0) == math.inf
    assert latency_s([station(2, 4, 0.02, 0.999)], 95.0) < math.inf


def test_latency_grows_with_load_and_with_the_percentile() -> None:
    loads = [latency_s([station(2, 4, 0.02, u)], 95.0) for u in (0.0, 0.2, 0.5, 0.8, 0.95)]
    assert loads == sorted(loads)
    assert loads[0] == pytest.approx(0.02)
    where = station(2, 4, 0.02, 0.8)
    assert latency_s([where], 50.0) < latency_s([where], 95.0) < latency_s([where], 99.0)


def test_a_slow_minority_sets_the_tail_only_if_it_is_large_enough() -> None:
    """With 2 % of the load on slow processes p95 is the fast ones'; with 20 %, the slow ones'."""
    fast = Station(10, 1000.0, 0.01, 100.0)
    assert latency_s([fast, Station(1, 10.0, 0.1, 2.0)], 95.0) == pytest.approx(0.01, rel=0.05)
    assert latency_s([fast, Station(10, 100.0, 0.1, 25.0)], 95.0) == pytest.approx(0.1, rel=0.05)

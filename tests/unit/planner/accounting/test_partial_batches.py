"""Fullness of batches: conservation, the known special cases, and a simulated queue."""

import heapq
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.profiles.core.profile import BatchCost
from services.planner.core.accounting.baseline import batch_flows, mean_energy_j

COSTS = st.builds(
    lambda fixed_s, item_s, fixed_j, item_j, most: [
        BatchCost(fixed_s + item_s * size, fixed_j + item_j * size) for size in range(1, most + 1)
    ],
    *(st.floats(1e-4, 0.1) for _ in range(4)),
    st.integers(1, 40),
)


@given(COSTS, st.integers(1, 30), st.floats(0.0, 1.2))
def test_as_many_requests_leave_as_arrive(
    costs: list[BatchCost], processes: int, utilisation: float
) -> None:
    """Up to capacity; beyond it as many as full batches take."""
    capacity_rps = processes * len(costs) / costs[-1].latency_s
    flows = batch_flows(utilisation * capacity_rps, processes, [cost.latency_s for cost in costs])

    left_rps = sum(size * flow for size, flow in enumerate(flows, start=1))
    assert min(flows) >= 0
    assert left_rps == pytest.approx(min(utilisation, 1.0) * capacity_rps, rel=1e-3)


@given(COSTS, st.integers(1, 30))
def test_a_request_costs_less_the_more_arrive(costs: list[BatchCost], processes: int) -> None:
    """Between a batch of one, where none meets another, and a full one."""
    capacity_rps = processes * len(costs) / costs[-1].latency_s
    drawn_j = [
        mean_energy_j(share * capacity_rps, processes, costs)
        for share in (0.0, 0.01, 0.1, 0.4, 0.7, 0.95, 2.0)
    ]

    assert drawn_j[0] == costs[0].energy_j
    assert drawn_j[-1] == pytest.approx(costs[-1].energy_j / len(costs))
    assert all(more <= less * 1.001 for less, more in pairwise(drawn_j))


@pytest.mark.parametrize("processes", [1, 3, 12])
@pytest.mark.parametrize("utilisation", [0.02, 0.1, 0.3, 0.6, 0.9])
def test_the_mean_energy_is_near_a_simulated_queue(processes: int, utilisation: float) -> None:
    """Batches of up to 16 that take 10 ms and 1 ms per item, half of their energy for one item."""
    costs = [BatchCost(0.01 + 0.001 * size, 1.0 + 0.1 * size) for size in range(1, 17)]
    load_rps = utilisation * processes * len(costs) / costs[-1].latency_s

    assert mean_energy_j(load_rps, processes, costs) == pytest.approx(
        simulated_j(load_rps, processes, costs), rel=0.08
    )


def simulated_j(load_rps: float, processes: int, costs: list[BatchCost]) -> float:
    """Poisson arrivals, processes that take what waits and never wait themselves."""
    draw = random.Random(1)
    arrivals = [draw.expovariate(load_rps)]
    while len(arrivals) < 20_000:
        arrivals.append(arrivals[-1] + draw.expovariate(load_rps))
    free_at = [0.0] * processes
    batches: Counter[int] = Counter()
    first = 0
    while first < len(arrivals):
        start_s = max(heapq.heappop(free_at), arrivals[first])
        size = 0
        while size < len(costs) and first < len(arrivals) and arrivals[first] <= start_s:
            size, first = size + 1, first + 1
        batches[size] += 1
        heapq.heappush(free_at, start_s + costs[size - 1].latency_s)
    return sum(count * costs[size - 1].energy_j for size, count in batches.items()) / len(arrivals)

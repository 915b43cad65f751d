"""The latency prediction against simulated queues, and at its edges."""

import heapq
import math
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from cinquefoil.planner.v1.records import Dispersion
from services.kit.config import Objective
from services.planner.core.model import SegmentKind
from services.planner.core.problem.distributions import counts
from services.planner.core.problem.latency_rule import admissible_rps
from services.planner.core.problem.queueing import late_share, late_share_bound, latency_s
from services.planner.core.problem.stations import Station
from tests.support.planner import fleets

SINGLE_S = 0.01


def kind(batch_size: int = 1, processes: int = 1, growth: float = 0.0) -> SegmentKind:
    """A segment whose batches take 10 ms, and `growth` times that more per further item."""
    times_s = [SINGLE_S * (1 + growth * (items - 1)) for items in range(1, batch_size + 1)]
    return SegmentKind(
        model="model",
        variant="variant",
        pool=fleets.pool(),
        profile="1g.5gb",
        batch_size=batch_size,
        processes=processes,
        latency_s=times_s[-1],
        throughput_rps=processes * batch_size / times_s[-1],
        energy_j=1.0,
        accuracy=80.0,
        times_s=tuple(
            (times_s[items - 1],) * processes for items in (1, (batch_size + 1) // 2, batch_size)
        ),
    )


def station(of: SegmentKind, segments: int, utilisation: float) -> Station:
    return Station(of, segments, utilisation * segments * of.throughput_rps)


def simulated_s(where: Station, requests: int = 30_000) -> float:  # noqa: C901  # one event loop
    """p95 of workers that requests are given to in turn: within a batch, then within two."""
    draw, of = random.Random(1), where.kind
    slope_s = (of.latency_s - SINGLE_S) / max(1, of.batch_size - 1)
    waiting: deque[float] = deque()
    held: list[deque[float]] = [deque() for _ in range(where.processes)]
    runs: list[list[float]] = [[] for _ in range(where.processes)]
    ends: list[tuple[float, int]] = []
    latencies: list[float] = []
    turn, now_s = 0, draw.expovariate(where.load_rps)

    def begin(worker: int, at_s: float) -> None:
        runs[worker] = [
            held[worker].popleft() for _ in range(min(len(held[worker]), of.batch_size))
        ]
        if runs[worker]:
            time_s = SINGLE_S + slope_s * (len(runs[worker]) - 1)
            heapq.heappush(ends, (at_s + time_s, worker))

    def held_by(less_than: int) -> list[int]:
        return [
            each for each in range(where.processes) if len(held[each]) + len(runs[each]) < less_than
        ]

    most = 2 * of.batch_size if of.batch_size > 1 else 1
    while len(latencies) < requests:
        if ends and ends[0][0] <= now_s:
            at_s, worker = heapq.heappop(ends)
            latencies += [at_s - arrived_s for arrived_s in runs[worker]]
            runs[worker] = []
            if held[worker]:
                begin(worker, at_s)
            while waiting and (free := held_by(most)):
                held[free[0]].append(waiting.popleft())
            if not runs[worker]:
                begin(worker, at_s)
            continue
        free = held_by(of.batch_size) or held_by(most)
        if free:
            worker = min(free, key=lambda each: (each - turn) % where.processes)
            held[worker].append(now_s)
            turn = worker + 1
            if not runs[worker]:
                begin(worker, now_s)
        else:
            waiting.append(now_s)
        now_s += draw.expovariate(where.load_rps)
    return sorted(latencies)[int(len(latencies) * 0.95)]


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.8])
@pytest.mark.parametrize(
    ("batch_size", "segments", "growth"),
    [(1, 1, 0.0), (1, 4, 0.0), (1, 12, 0.0), (8, 1, 0.3), (8, 3, 0.3), (16, 2, 0.05)],
)
def test_the_prediction_is_near_a_simulated_queue(
    batch_size: int, segments: int, growth: float, utilisation: float
) -> None:
    """p95 within 20 %, for single requests and for batches, one to twelve workers."""
    where = station(kind(batch_size, growth=growth), segments, utilisation)
    assert latency_s([where], 95.0) == pytest.approx(simulated_s(where), rel=0.2)


@pytest.mark.parametrize(("utilisation", "expected"), [(0.5, 3.0675), (0.8, 7.6203)])
def test_one_worker_without_batches_is_the_queue_m_d_1(utilisation: float, expected: float) -> None:
    """Erlang (1909): P(W <= t) = (1 - u) sum of (u (k - t))^k / k! e^(-u (k - t)), k <= t."""
    found = latency_s([station(kind(), 1, utilisation)], 95.0) / SINGLE_S
    wait = found - 1.0
    within = (1 - utilisation) * sum(
        (utilisation * (k - wait)) ** k / math.factorial(k) * math.exp(-utilisation * (k - wait))
        for k in range(math.floor(wait) + 1)
    )
    assert 0.949 <= within <= 0.965  # loads are rounded up by 2 %
    assert found == pytest.approx(expected, rel=0.08)


def test_latency_is_infinite_from_capacity_on() -> None:
    assert latency_s([], 95.0) == math.inf
    assert latency_s([station(kind(4), 2, 1.0)], 95.0) == math.inf
    assert late_share([station(kind(4), 2, 1.0)], 100.0) == 1.0
    assert latency_s([station(kind(4), 2, 0.9)], 95.0) < math.inf


@pytest.mark.parametrize("batch_size", [1, 8])
def test_latency_grows_with_load_and_with_the_percentile(batch_size: int) -> None:
    of = kind(batch_size, growth=0.2)
    loads = [latency_s([station(of, 2, u)], 95.0) for u in (0.0, 0.2, 0.5, 0.8, 0.9)]
    assert loads == sorted(loads)
    assert loads[0] == pytest.approx(SINGLE_S, rel=0.03)
    where = station(of, 2, 0.8)
    assert latency_s([where], 50.0) < latency_s([where], 95.0) < latency_s([where], 99.0)


@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_a_bound_that_many_share_is_never_below_what_is_late(batch_size: int) -> None:
    """A plan that the bound lets pass keeps its percentile; mostly it says more than 'all'."""
    draw, informative = random.Random(batch_size), 0
    for _ in range(60):
        of = kind(batch_size, draw.choice((1, 2, 3)), draw.choice((0.0, 0.05, 0.5, 2.0)))
        where = station(of, draw.choice((1, 3, 20)), draw.uniform(0.02, 0.94))
        time_s = of.latency_s * draw.uniform(1.0, 6.0)
        bound = late_share_bound(where, time_s)
        assert late_share([where], time_s) <= bound + 0.002
        informative += bound < 1.0
    assert informative >= 40 or batch_size == 1


def test_processes_that_share_a_slice_are_as_slow_as_so_many_of_them() -> None:
    """At low load one runs by itself; at high load all do, each three times as long."""
    of = SegmentKind(
        "model", "variant", fleets.pool(), "1g.5gb", 1, 3, 0.03, 100.0, 1.0, 80.0,
        times_s=((0.01, 0.02, 0.03),) * 3,
    )  # fmt: skip
    assert latency_s([Station(of, 1, 1.0)], 95.0) == pytest.approx(0.01, rel=1e-3)
    assert latency_s([Station(of, 1, 80.0)], 95.0) > 0.03


# ---- bursts --------------------------------------------------------------------------------------


def simulated_late_share(where: Sequence[Station], time_s: float, requests: int = 60_000) -> float:
    """Requests, one by one, in turn to the kinds of idle workers; those without one wait."""
    draw = random.Random(1)
    total_rps = sum(each.load_rps for each in where)
    owed, idle = [0.0] * len(where), [each.processes for each in where]
    ends, late = list[tuple[float, int]](), 0
    now_s = begun_s = 0.0
    for _ in range(requests):
        now_s += draw.expovariate(total_rps)
        begun_s = max(begun_s, now_s)
        while ends and (ends[0][0] <= begun_s or not any(idle)):
            end_s, of = heapq.heappop(ends)
            begun_s, idle[of] = max(begun_s, end_s), idle[of] + 1
        owed = [o + each.load_rps / total_rps for o, each in zip(owed, where, strict=True)]
        chosen = max((at for at in range(len(where)) if idle[at]), key=lambda at: owed[at])
        owed[chosen] -= 1.0
        idle[chosen] -= 1
        end_s = begun_s + where[chosen].kind.latency_s
        heapq.heappush(ends, (end_s, chosen))
        late += end_s - now_s > time_s
    return late / requests


def test_kinds_whose_load_is_unequal_are_late_no_more_than_predicted() -> None:
    """One fast worker at 90 %, two slow ones at 70 %: while all are busy, the slow take more."""
    fast, slow = (
        replace(kind(), latency_s=t, throughput_rps=1 / t, times_s=((t,), (t,), (t,)))
        for t in (0.0414, 0.0593)
    )
    where = [station(fast, 1, 0.9), station(slow, 2, 0.703)]

    late = simulated_late_share(where, 0.1438)

    assert late <= late_share(where, 0.1438) <= 1.25 * late


@pytest.mark.parametrize("groups", [1.25, 3.0, 10.0])
def test_counts_of_groups_have_their_mean_and_dispersion(groups: float) -> None:
    """Groups of geometric size that come by chance: variance over mean as given."""
    means, at = np.array([0.5, 4.0]), np.arange(400)

    found = counts(means, 400, groups)

    assert found.sum(axis=1) == pytest.approx([1.0, 1.0])
    assert found @ at == pytest.approx(means)
    assert found @ at**2 - (found @ at) ** 2 == pytest.approx(groups * means)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_the_burstier_the_load_the_longer_it_waits(batch_size: int) -> None:
    """Any part of the dispersion makes requests late, and none changes nothing."""
    where = station(kind(batch_size), 2, 0.5)
    shares = [
        latency_s([where], 95.0, Dispersion(one, ten))
        for one, ten in ((1.0, 1.0), (3.0, 3.0), (9.0, 9.0), (40.0, 40.0))
    ]

    assert shares == sorted(shares)
    assert shares[0] == latency_s([where], 95.0)
    assert shares[-1] > 1.2 * shares[0]


def test_a_rate_that_switches_needs_capacity_for_the_higher_one() -> None:
    """Three quarters of the requests of an MMPP 3:1 come at 1.5 times the mean."""
    of = kind(8)
    load_rps = 0.7 * of.throughput_rps
    switching = Dispersion(1 + load_rps / 4, 1 + load_rps / 4 * 6)

    assert latency_s([Station(of, 1, load_rps)], 95.0) < math.inf
    assert latency_s([Station(of, 1, load_rps)], 95.0, switching) == math.inf
    assert latency_s([Station(of, 2, load_rps)], 95.0, switching) < math.inf


def test_a_segment_may_take_less_of_a_bursty_load() -> None:
    """The plan's latency rule counts the dispersion, so that plans get more segments."""
    of, objective = kind(), Objective(max_utilisation=0.9)
    model = fleets.model(demand_rps=20 * of.throughput_rps, slo_s=4 * of.latency_s)
    bursty = replace(model, dispersion=Dispersion(9.0, 9.0))

    assert admissible_rps(objective, bursty, of) < admissible_rps(objective, model, of)


def test_an_objective_far_above_a_requests_time_costs_no_time_to_check() -> None:
    """Nothing waits for a million requests' times: counts of all that could come are not needed."""
    where = station(kind(processes=3), 20, 0.9)
    begun_s = time.process_time()
    late = late_share([where], 1e6 * where.kind.latency_s, Dispersion(12.0, 40.0))
    assert late == 0.0
    assert time.process_time() - begun_s < 2.0

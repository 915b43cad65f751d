"""Algorithm 1, its rivals and the carbon-aware policy, and pools that they decide for."""

from __future__ import annotations

import heapq
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.carbondis.baselines import DyBatch, RandomJob
from benchmarks.carbondis.pool import Job, Pool
from services.router.core.balancing.baselines import HighPerf, LowEnergy
from services.router.core.balancing.carbon_aware import CarbonAware
from services.router.core.balancing.carbondis import Carbondis
from services.router.core.balancing.policy import (
    Gpu,
    Placement,
    Policy,
    QueuedRequest,
    QueueView,
    Start,
)

SLO_S = 1.0
LOW, HIGH, HIGHER = 0, 1, 2


def queued(*gpus: tuple[Gpu, float, float], job: int = 0, arrived_s: float = 0.0) -> QueuedRequest:
    """Return a request with an offer (latency, carbon) of each GPU."""
    placements = tuple(Placement(gpu, s, s, carbon, s) for gpu, s, carbon in gpus)
    return QueuedRequest(job, 1, arrived_s, arrived_s + SLO_S, placements)


def chosen(
    policy: Policy, *requests: QueuedRequest, now_s: float = 0.0, ratio: float = 1.0
) -> Gpu | None:
    start = policy.decide(QueueView(now_s, ratio, [[each] for each in requests])).start
    return start.placement.gpu if start else None


@pytest.mark.parametrize(
    ("low_s", "ratio", "high_busy", "expected"),
    [
        (2.0, 0.5, False, HIGH),  # lines 11-13
        (2.0, 0.5, True, LOW),  # lines 14-15
        (0.5, 1.5, False, HIGH),  # lines 16-18
        (0.5, 1.5, True, LOW),  # lines 19-20
        (0.5, 1.0, False, LOW),  # lines 21-22: CIR <= CIT
        (1.0, 1.0, False, LOW),  # ESFT = EXFT is in time
    ],
    ids=["late", "late-busy", "dirty", "dirty-busy", "clean", "just-in-time"],
)
def test_every_branch_of_algorithm_1_is_as_printed(
    low_s: float, ratio: float, high_busy: bool, expected: int
) -> None:
    low, high = Gpu(0, LOW), Gpu(1, HIGH, busy=high_busy, free_s=9.0)

    gpu = chosen(Carbondis(1.0), queued((low, low_s, 2.0), (high, 0.1, 1.0)), ratio=ratio)

    assert gpu is not None
    assert gpu.rank == expected


def test_a_request_waits_for_the_low_end_where_that_is_in_time() -> None:
    """CT of Eq. 6 is when the request would be executed, not when it is looked at."""
    low, high = Gpu(0, LOW, busy=True, free_s=0.4), Gpu(1, HIGH)

    assert chosen(Carbondis(), queued((low, 0.5, 2.0), (high, 0.1, 1.0))) is None
    low.free_s = 0.6
    assert chosen(Carbondis(), queued((low, 0.5, 2.0), (high, 0.1, 1.0))) is high


def test_the_job_with_the_most_violations_goes_first() -> None:
    low = Gpu(0, LOW)
    first, second = queued((low, 0.1, 1.0)), queued((low, 0.1, 1.0), job=1)

    start = Carbondis().decide(QueueView(0.0, 1.0, [[first], [second]], [3, 4])).start

    assert start is not None
    assert start.queued is second


def test_among_three_classes_who_would_be_late_takes_the_least_that_is_in_time() -> None:
    low, high, higher = Gpu(0, LOW), Gpu(1, HIGH), Gpu(2, HIGHER)

    def placements(low_s: float, high_s: float) -> QueuedRequest:
        return queued((low, low_s, 3.0), (high, high_s, 2.0), (higher, 0.1, 2.5))

    assert chosen(Carbondis(), placements(2.0, 0.9)) is high
    assert chosen(Carbondis(), placements(2.0, 1.5)) is higher
    assert chosen(Carbondis(), placements(0.5, 0.9), ratio=2.0) is high, "the one that emits least"


def test_several_gpus_of_a_class_are_taken_as_they_become_free() -> None:
    lows = [Gpu(0, LOW, busy=True, free_s=5.0), Gpu(1, LOW)]

    assert chosen(Carbondis(), queued(*((gpu, 0.5, 1.0) for gpu in lows))) is lows[1]
    assert chosen(LowEnergy(), queued(*((gpu, 0.5, 1.0) for gpu in lows))) is lows[1]


def test_rivals_keep_to_their_class() -> None:
    low, high = Gpu(0, LOW), Gpu(1, HIGH, busy=True, free_s=1.0)
    both = queued((low, 0.1, 1.0), (high, 0.1, 1.0))

    assert chosen(HighPerf(), both) is None, "it waits for the high end"
    assert chosen(LowEnergy(), both) is low
    assert chosen(DyBatch(), both) is low, "whatever is free"


def test_dybatch_gives_each_job_the_same_time_of_the_shared_gpu() -> None:
    high, policy, had_s = Gpu(0, HIGH), DyBatch(), [0.0, 0.0]
    latencies_s = (0.1, 0.4)

    for _ in range(500):
        queues = [[queued((high, s, 1.0), job=job)] for job, s in enumerate(latencies_s)]
        start = policy.decide(QueueView(0.0, 1.0, queues)).start
        assert start is not None
        had_s[start.queued.job] += start.placement.latency_s

    assert abs(had_s[0] - had_s[1]) <= max(latencies_s)


def test_random_gives_the_high_end_to_the_job_that_it_drew_alone() -> None:
    low, high = Gpu(0, LOW), Gpu(1, HIGH)
    policy = RandomJob(4, Random(1))
    uses = Counter[int]()
    for number in range(400):
        queues: list[list[QueuedRequest]] = [[], [], [], []]
        queues[number % 4] = [queued((low, 0.1, 1.0), (high, 0.1, 1.0), job=number % 4)]
        start = policy.decide(QueueView(0.0, 1.0, queues)).start
        assert start is not None
        uses[start.placement.gpu.rank] += 1

    assert 0 < uses[HIGH] < uses[LOW], "the draw waits for its job; others pass below"


# ---- carbon-aware ------------------------------------------------------------------------------


def test_a_request_waits_for_the_least_carbon_only_as_long_as_it_is_in_time() -> None:
    low, high = Gpu(0, LOW), Gpu(1, HIGH, busy=True, free_s=0.5)
    request = queued((low, 0.4, 2.0), (high, 0.3, 1.0))
    view = QueueView(0.0, 1.0, [[request]])

    decision = CarbonAware().decide(view)
    assert decision.start is None
    assert decision.again_s == pytest.approx(0.6), "the latest start below"
    high.free_s = 0.8
    assert CarbonAware().decide(view).start == Start(request, request.placements[0])


def test_which_class_emits_least_may_differ_by_request() -> None:
    """A small request may be cheaper on the low end; the class itself is no argument."""
    low, high = Gpu(0, LOW), Gpu(1, HIGH)

    assert chosen(CarbonAware(), queued((low, 0.4, 1.0), (high, 0.1, 2.0))) is low
    assert chosen(CarbonAware(), queued((low, 0.4, 2.0), (high, 0.1, 1.0))) is high


def test_who_has_a_choice_leaves_the_shared_gpu_to_who_has_none() -> None:
    low, high = Gpu(0, LOW), Gpu(1, HIGH, jobs=2)
    easy = queued((low, 0.9, 2.0), (high, 0.6, 1.0))
    hard = queued((high, 0.6, 1.0), job=1, arrived_s=0.01)

    start = CarbonAware().decide(QueueView(0.01, 1.0, [[easy], [hard]])).start

    assert start is not None
    assert (start.queued, start.placement.gpu) == (easy, low)


def test_who_is_late_anyway_lets_others_be_in_time() -> None:
    high = Gpu(0, HIGH)
    lost, sound = queued((high, 0.6, 1.0)), queued((high, 0.6, 1.0), job=1, arrived_s=0.8)

    start = CarbonAware().decide(QueueView(0.8, 1.0, [[lost], [sound]])).start

    assert start is not None
    assert start.queued is sound


POLICIES: dict[str, Policy] = {
    "carbondis": Carbondis(),
    "carbon-aware": CarbonAware(),
    "dybatch": DyBatch(),
    "highperf": HighPerf(),
    "lowenergy": LowEnergy(),
}


@pytest.mark.parametrize("name", POLICIES)
@given(
    requests=st.lists(
        st.tuples(st.floats(0, 5), st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=40
    ),
    shared=st.integers(1, 2),
)
def test_every_request_is_served_once_and_no_gpu_holds_two(
    name: str, requests: list[tuple[float, int, int]], shared: int
) -> None:
    """Whatever comes when: nothing starves, nothing is lost, and events alone keep it going."""
    lows = [Gpu(job, LOW) for job in range(3)]
    highs = [Gpu(3 + number, HIGH, jobs=3) for number in range(shared)]
    pool = Pool(POLICIES[name], [Job(SLO_S, (low, *highs)) for low in lows])
    arrivals = sorted(requests, key=lambda each: each[0])
    running: list[tuple[float, int, Start, float]] = []
    held: set[int] = set()
    served = 0
    now_s = 0.0
    while arrivals or running:
        due = [arrivals[0][0]] if arrivals else []
        due += [running[0][0]] if running else []
        due += [pool.again_s] if pool.again_s is not None and pool.again_s > now_s else []
        now_s = min(due)
        while running and running[0][0] <= now_s:
            _, _, start, latency_s = heapq.heappop(running)
            held.remove(start.placement.gpu.key)
            pool.done(start, now_s, latency_s, latency_s)
        while arrivals and arrivals[0][0] <= now_s:
            _, job, size = arrivals.pop(0)
            pool.arrive(job, size, now_s, lambda _: 1.0)
        for start in pool.decide(now_s, 1.0):
            gpu = start.placement.gpu
            assert gpu.key not in held
            assert gpu in pool.jobs[start.queued.job].gpus
            held.add(gpu.key)
            served += 1
            latency_s = 0.2 * start.queued.size / (1 + 5 * gpu.rank)
            heapq.heappush(running, (now_s + latency_s, served, start, latency_s))

    assert served == len(requests)

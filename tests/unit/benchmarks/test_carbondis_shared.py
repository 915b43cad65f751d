"""The policies on GPUs that several jobs share, and pools that they decide for."""

import heapq
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.carbondis.baselines import HighPerf, LowEnergy
from benchmarks.carbondis.pool import Job, JobStart, Pool
from benchmarks.carbondis.shared import (
    DyBatch,
    InTurn,
    JobRequest,
    RandomJob,
    SharedCarbonAware,
    SharedGpu,
    SharedPolicy,
    SharedView,
    by_violations,
)
from services.router.core.balancing.carbondis import Carbondis
from services.router.core.balancing.policy import Gpu, Placement
from tests.support.examples import examples

SLO_S = 1.0
LOW, HIGH = 0, 1


def queued(*gpus: tuple[Gpu, float, float], job: int = 0, arrived_s: float = 0.0) -> JobRequest:
    """Return a request with a placement (latency, carbon) on each GPU."""
    placements = tuple(Placement(gpu, s, s, carbon, s) for gpu, s, carbon in gpus)
    return JobRequest(1, arrived_s, arrived_s + SLO_S, placements, job)


def test_the_job_with_the_most_violations_goes_first() -> None:
    low = Gpu(0, LOW)
    first, second = queued((low, 0.1, 1.0)), queued((low, 0.1, 1.0), job=1)

    start = (
        InTurn(Carbondis(), by_violations)
        .decide(SharedView(0.0, 1.0, [[first], [second]], [3, 4]))
        .start
    )

    assert start is not None
    assert start.queued is second


def test_dybatch_uses_any_free_gpu() -> None:
    low, high = Gpu(0, LOW), Gpu(1, HIGH, busy=True, free_s=1.0)
    both = queued((low, 0.1, 1.0), (high, 0.1, 1.0))

    start = DyBatch().decide(SharedView(0.0, 1.0, [[both]])).start

    assert start is not None
    assert start.placement.gpu is low


def test_dybatch_gives_each_job_the_same_time_of_the_shared_gpu() -> None:
    high, policy, had_s = Gpu(0, HIGH), DyBatch(), [0.0, 0.0]
    latencies_s = (0.1, 0.4)

    for _ in range(500):
        queues = [[queued((high, s, 1.0), job=job)] for job, s in enumerate(latencies_s)]
        start = policy.decide(SharedView(0.0, 1.0, queues)).start
        assert start is not None
        assert isinstance(start.queued, JobRequest)
        had_s[start.queued.job] += start.placement.latency_s

    assert abs(had_s[0] - had_s[1]) <= max(latencies_s)


def test_random_gives_the_high_end_to_the_job_that_it_drew_alone() -> None:
    low, high = Gpu(0, LOW), Gpu(1, HIGH)
    policy = RandomJob(4, Random(1))
    uses = Counter[int]()
    for number in range(400):
        queues: list[list[JobRequest]] = [[], [], [], []]
        queues[number % 4] = [queued((low, 0.1, 1.0), (high, 0.1, 1.0), job=number % 4)]
        start = policy.decide(SharedView(0.0, 1.0, queues)).start
        assert start is not None
        uses[start.placement.gpu.rank] += 1

    assert 0 < uses[HIGH] < uses[LOW], "the draw waits for its job; others pass below"


def test_a_request_with_a_choice_leaves_the_shared_gpu_to_one_without() -> None:
    low, high = SharedGpu(0, LOW), SharedGpu(1, HIGH, jobs=2)
    easy = queued((low, 0.9, 2.0), (high, 0.6, 1.0))
    hard = queued((high, 0.6, 1.0), job=1, arrived_s=0.01)

    start = SharedCarbonAware().decide(SharedView(0.01, 1.0, [[easy], [hard]])).start

    assert start is not None
    assert (start.queued, start.placement.gpu) == (easy, low)


POLICIES: dict[str, SharedPolicy] = {
    "carbondis": InTurn(Carbondis(), by_violations),
    "carbon-aware": SharedCarbonAware(),
    "dybatch": DyBatch(),
    "highperf": InTurn(HighPerf()),
    "lowenergy": InTurn(LowEnergy()),
}


@pytest.mark.parametrize("name", POLICIES)
@examples(0.25)
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
    lows = [SharedGpu(job, LOW) for job in range(3)]
    highs = [SharedGpu(3 + number, HIGH, jobs=3) for number in range(shared)]
    pool = Pool(POLICIES[name], [Job(SLO_S, (low, *highs)) for low in lows])
    arrivals = sorted(requests, key=lambda each: each[0])
    running: list[tuple[float, int, JobStart, float]] = []
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

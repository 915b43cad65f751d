"""One GPU's governor over time: counts in, clocks out."""

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.miad.setting import served
from cinquefoil.gpuagent.v1.records import ScaleOut
from services.gpuagent.clock_loop.core.decide import GovernedSegment, Move, Partition
from services.gpuagent.clock_loop.core.governor import SAMPLE_S, Governor, energy_floor
from services.gpuagent.shared_memory.latency_counters import SIZES, Counts, size_of
from services.kit.hardware.gpu_types import load
from tests.support.examples import examples, trials

V100 = load("v100").clocks_mhz
CURVE = load("v100").clock_curve
A = GovernedSegment("s-a", "digits", percentile=99.0, objective_s=0.1)
B = GovernedSegment("s-b", "letters", percentile=95.0, objective_s=0.2)


class Node:
    """A governor, and segments whose requests all take as long as the test says."""

    def __init__(self, *segments: GovernedSegment, floor: float = 0.45) -> None:
        self.governor = Governor("GPU-1", V100, floor)
        self.counts: dict[GovernedSegment, Counts] = {
            segment: np.zeros(SIZES, np.uint64) for segment in segments
        }
        self.at_s = 0.0

    def pass_time(self, seconds: float, ceiling_mhz: int = 0, **latency_s: float) -> list[int]:
        """Answer 1000 requests per second of each model named; return the clocks meanwhile."""
        clocks = []
        for _ in range(round(seconds / SAMPLE_S)):
            for segment, counts in self.counts.items():
                if segment.model in latency_s:
                    self.counts[segment] = counts.copy()
                    self.counts[segment][size_of(latency_s[segment.model])] += 500
            self.at_s += SAMPLE_S
            self.governor.look(self.at_s, ceiling_mhz, self.counts)
            clocks.append(self.governor.clock_mhz)
        return clocks


def test_the_clock_falls_by_a_step_a_second_and_rises_at_the_next_look() -> None:
    """Down is slow and up is fast."""
    node = Node(A)
    falling = node.pass_time(20, digits=0.01)
    rising = node.pass_time(1.5, digits=0.3)

    assert falling == sorted(falling, reverse=True)
    assert set(Counter(falling[1:11]).values()) == {2}
    assert max(before - after for before, after in pairwise(falling)) <= 0.05 * 1380
    assert falling[-1] >= 0.45 * 1380
    assert rising[0] >= min(2 * falling[-1], 1380)
    assert rising[-1] == 1380


def test_the_plans_clock_is_start_and_ceiling() -> None:
    """The loop never exceeds the clock that the plan paid for."""
    node = Node(A)
    node.pass_time(20, digits=0.01)
    clocks = node.pass_time(10, ceiling_mhz=945, digits=0.01)

    assert clocks[0] == 945
    assert max(clocks) == 945
    assert max(node.pass_time(5, ceiling_mhz=945, digits=0.5)) == 945
    assert node.governor.at_ceiling


def test_another_segment_restarts_the_loop() -> None:
    """Latencies of other segments prove nothing about a new one."""
    node = Node(A)
    lowered = node.pass_time(20, digits=0.01)[-1]
    node.counts[B] = np.zeros(SIZES, np.uint64)

    assert lowered < 945
    assert node.pass_time(0.5, digits=0.01) == [1380]


def test_one_model_without_slack_holds_the_clock_up_for_all() -> None:
    """All segments of a GPU share its clock."""
    node = Node(A, B)
    node.pass_time(5, digits=0.01, letters=0.195)

    assert node.governor.at_ceiling
    assert node.governor.slack["digits"] > 0.85
    assert node.governor.slack["letters"] < 0.05


def test_too_much_load_for_the_highest_clock_is_reported_every_few_seconds() -> None:
    """A report that gets lost is repeated."""
    node = Node(A, B)
    reports: list[ScaleOut] = []
    for _ in range(22):
        node.pass_time(0.5, digits=0.01, letters=0.5)
        if node.governor.scale_out:
            reports.append(node.governor.scale_out)

    assert [each.models for each in reports] == [("letters",)] * 2
    assert reports[0].reason == (
        "letters takes 247 % of its objective since 5 s on GPU-1, which runs at 1380 MHz and may "
        "run no faster"
    )


def test_a_clock_that_rises_is_not_yet_a_reason_for_more_gpus() -> None:
    """More GPUs are requested at the highest clock only."""
    node = Node(A)
    node.pass_time(20, digits=0.01)
    node.pass_time(3, digits=0.3)

    assert node.governor.scale_out is None
    assert node.governor.moves[Move.UP] >= 2


def test_without_segments_the_clock_is_given_back() -> None:
    """An idle GPU is the driver's to clock."""
    node = Node(A)
    node.pass_time(20, digits=0.01)
    assert not node.governor.at_ceiling
    node.counts.clear()
    node.pass_time(0.5)

    assert node.governor.at_ceiling
    assert node.governor.slack == {}


def test_a_governor_that_starts_again_begins_at_the_ceiling() -> None:
    """Without knowledge, latency comes first."""
    node = Node(A)
    node.pass_time(20, digits=0.01)
    node.governor.start_again()

    assert node.governor.at_ceiling
    assert node.pass_time(0.5, digits=0.01) == [1380]


def test_an_insensitive_model_goes_lower_with_the_same_slack() -> None:
    """mu-Serve's weight: a step costs it less."""
    sensitive, dull = Node(A), Node(replace(A, sensitivity=0.1))
    for node in (sensitive, dull):
        node.pass_time(60, digits=0.085)

    assert dull.governor.clock_mhz < sensitive.governor.clock_mhz


@examples(0.2)
@given(
    sensitivities=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    latencies_s=st.lists(st.sampled_from([0.001, 0.05, 0.09, 0.3]), min_size=1, max_size=6),
    floor=st.sampled_from([0.1, 0.5, 0.8]),
)
def test_the_clock_stays_where_the_most_sensitive_segment_takes_the_least_energy(
    sensitivities: tuple[float, float], latencies_s: list[float], floor: float
) -> None:
    """The clock is there or above, and above the node's own floor, whatever the latencies are."""
    one, other = sensitivities
    node = Node(replace(A, sensitivity=one), replace(B, sensitivity=other), floor=floor)
    least = max(floor, CURVE.thriftiest(max(sensitivities), [mhz / 1380 for mhz in V100]))

    for latency_s in latencies_s:
        clocks = node.pass_time(15, digits=latency_s, letters=latency_s)
        assert min(clocks) >= least * 1380 - 1e-6


def test_with_slack_all_the_way_it_comes_down_to_that_clock() -> None:
    """The loop finds the clock of least energy and stays there."""
    node = Node(replace(A, sensitivity=0.3), replace(B, sensitivity=0.7), floor=0.1)
    node.pass_time(60, digits=0.001, letters=0.001)

    assert node.governor.clock_mhz == pytest.approx(1380 * CURVE.thriftiest(0.7), abs=0.05 * 1380)


def test_the_fuller_batches_of_a_slower_gpu_are_worth_a_lower_clock() -> None:
    """Half the load that the highest clock can serve: full batches at half of it, as measured."""
    batching = served(32, 4)
    segment = replace(A, costs=batching.costs, processes=batching.processes)
    work = partial(Partition, segment)
    ratios = tuple(mhz / 1380 for mhz in V100)

    assert energy_floor(
        [work(rate_rps=0.1 * batching.capacity_rps)], ratios, CURVE
    ) == pytest.approx(CURVE.thriftiest(1.0), abs=0.05)
    assert energy_floor([work(rate_rps=0.5 * batching.capacity_rps)], ratios, CURVE) == 0.5
    assert energy_floor([work(rate_rps=0.9 * batching.capacity_rps)], ratios, CURVE) >= 0.8


@pytest.mark.parametrize("seed", range(trials(0.02)))
def test_a_rare_model_keeps_its_own_percentile_for_an_hour(seed: int) -> None:
    """A request in four seconds, one in fifty of them slow: in time at the highest clock only.

    Beside it a busy model has all the slack there is; the rare one must not pay for it.
    """
    rng = np.random.default_rng(seed)
    rare = replace(A, sensitivity=1.0)
    node, late, answered = Node(rare, replace(B, sensitivity=0.0), floor=0.3), 0, 0
    for step in range(7200):
        if step % 8 == 0:
            alone_s = 0.09 if rng.random() < 0.02 else 0.03
            took_s = alone_s * CURVE.stretch(1.0, node.governor.clock_mhz / 1380)
            node.counts[rare] = node.counts[rare].copy()
            node.counts[rare][size_of(took_s)] += 1
            late, answered = late + (took_s > rare.objective_s), answered + 1
        node.pass_time(SAMPLE_S, letters=0.01)

    assert late <= 0.01 * answered


def test_a_spent_budget_raises_the_clock_but_requests_no_more_gpus() -> None:
    """Five late among five hundred are within p99, time and again they are too near to it."""
    node = Node(A)
    clocks = [node.pass_time(20, digits=0.01)[-1]]
    for _ in range(3):
        node.counts[A] = node.counts[A].copy()
        node.counts[A][size_of(0.5)] += 5
        clocks += node.pass_time(0.5, digits=0.01)
        assert node.governor.slack["digits"] > 0.8
        assert node.governor.scale_out is None

    assert clocks[0] < 1380
    assert clocks[-1] == 1380

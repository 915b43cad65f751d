"""Choice of the next clock: bounds, precedence, and a steady clock for a steady load."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.clock_loop.core.decide import (
    RULES,
    Bounds,
    Failure,
    GovernedSegment,
    Move,
    Observation,
    Partition,
    State,
    bounds,
    decide,
    moved,
)
from services.kit.errors import InvalidArgument
from services.kit.hardware.gpu_types import load
from tests.support.examples import examples

V100 = load("v100").clocks_mhz
FREE = bounds(V100, 0, 0.2)

latencies = st.none() | st.floats(0.0, 3.0)
partitions = st.builds(
    Partition,
    st.builds(
        GovernedSegment,
        segment_id=st.sampled_from("abcd"),
        model=st.just("m"),
        percentile=st.just(95.0),
        objective_s=st.floats(0.01, 1.0),
        sensitivity=st.floats(0.0, 1.0),
        costs=st.none(),
    ),
    proven_s=latencies,
    latency_s=latencies,
    rate_rps=st.floats(0.0, 1e4),
)
crowds = st.lists(partitions, max_size=5)
limits = st.builds(
    bounds,
    st.lists(st.integers(100, 2000), min_size=1, max_size=30, unique=True),
    st.just(0) | st.integers(50, 2500),
    st.floats(0.01, 1.0),
)
ORDER = [Move.DOWN, Move.SAME, Move.UP]


def partition(latency_s: float, name: str = "a", rate_rps: float = 100.0) -> Partition:
    """Return a partition whose latency is known, of an objective of 100 ms."""
    segment = GovernedSegment(name, "m", 95.0, 0.1)
    return Partition(segment, proven_s=latency_s, latency_s=latency_s, rate_rps=rate_rps)


def chosen(state: State, *crowd: Partition, at_s: float = 0.0) -> Move:
    return decide(state, Observation(crowd, FREE, at_s))


@examples(0.25)
@given(st.data(), limits, st.lists(crowds, max_size=30))
def test_only_clocks_within_the_bounds_are_ever_used(
    data: st.DataObject, allowed: Bounds, looks: Sequence[Sequence[Partition]]
) -> None:
    """Whatever happens, the clock is one of the GPU between floor and ceiling."""
    state = State(data.draw(st.sampled_from(allowed.clocks_mhz)))
    for at_s, crowd in enumerate(looks):
        look = Observation(crowd, allowed, float(at_s))
        state = moved(state, decide(state, look), look)
        assert state.clock_mhz in allowed.clocks_mhz


@given(limits, st.data())
def test_up_is_up_and_down_is_down_unless_there_is_no_further(
    allowed: Bounds, data: st.DataObject
) -> None:
    """A decision moves the clock in its direction, or the clock is at that end."""
    clock_mhz = data.draw(st.sampled_from(allowed.clocks_mhz))
    above, below = allowed.above(clock_mhz), allowed.below(clock_mhz)

    assert above >= min(2 * clock_mhz, allowed.highest_mhz)
    assert below < clock_mhz or clock_mhz == allowed.clocks_mhz[0]
    between = [each for each in allowed.clocks_mhz if below < each < clock_mhz]
    assert not between or clock_mhz - below <= allowed.step_mhz, "no more than a step at a time"


@given(st.lists(st.integers(100, 2000), min_size=1), st.integers(0, 2500), st.floats(0.01, 1.0))
def test_the_plans_ceiling_binds_before_the_floor(
    supported: list[int], ceiling_mhz: int, floor: float
) -> None:
    """Where the two cross, the plan wins."""
    allowed = bounds(supported, ceiling_mhz, floor)

    assert set(allowed.clocks_mhz) <= set(supported)
    within = [each for each in supported if not ceiling_mhz or each <= ceiling_mhz]
    assert allowed.highest_mhz == max(within, default=min(supported))
    assert len(allowed.clocks_mhz) == 1 or allowed.clocks_mhz[0] >= floor * max(supported)


def test_a_gpu_without_clocks_has_no_bounds() -> None:
    """A GPU that cannot be clocked is left alone."""
    with pytest.raises(InvalidArgument, match="supported_mhz"):
        bounds((), 0, 0.5)


@given(crowds, partitions, st.sampled_from(FREE.clocks_mhz))
def test_one_that_wants_up_prevails_over_all_others(
    crowd: list[Partition], late: Partition, clock_mhz: int
) -> None:
    """Latency of one partition counts more than energy of all."""
    wanting = replace(late, proven_s=late.segment.objective_s * 0.96)

    assert chosen(State(clock_mhz), *crowd, wanting) is Move.UP


@given(crowds, st.sampled_from(FREE.clocks_mhz))
def test_down_takes_the_consent_of_all(crowd: list[Partition], clock_mhz: int) -> None:
    """The printed algorithm goes down where any one has slack."""
    if chosen(State(clock_mhz), *crowd) is Move.DOWN:
        lower_mhz = FREE.below(clock_mhz)
        assert all(each.tolerates(State(clock_mhz), lower_mhz, RULES) for each in crowd)
        unknown = replace(crowd[0], latency_s=None)
        assert chosen(State(clock_mhz), *crowd, unknown) is Move.SAME


@given(crowds, st.integers(0, 4), st.floats(0.0, 1.0), st.sampled_from(FREE.clocks_mhz))
def test_a_longer_latency_never_leads_to_a_lower_clock(
    crowd: list[Partition], index: int, more_s: float, clock_mhz: int
) -> None:
    """The decision is monotone in latency."""
    before = chosen(State(clock_mhz), *crowd)
    longer = [
        replace(
            each,
            proven_s=None if each.proven_s is None else each.proven_s + more_s * (at == index),
            latency_s=None if each.latency_s is None else each.latency_s + more_s * (at == index),
        )
        for at, each in enumerate(crowd)
    ]

    assert ORDER.index(chosen(State(clock_mhz), *longer)) >= ORDER.index(before)


@examples(0.4)
@given(partitions, st.sampled_from(FREE.clocks_mhz), st.floats(0.0, 1.0))
def test_a_less_sensitive_partition_tolerates_at_least_as_much(
    one: Partition, clock_mhz: int, sensitivity: float
) -> None:
    """The decision is monotone in sensitivity."""
    state, lower_mhz = State(clock_mhz), FREE.below(clock_mhz)
    least = min(sensitivity, one.segment.sensitivity)
    duller = replace(one, segment=replace(one.segment, sensitivity=least))

    assert duller.tolerates(state, lower_mhz, RULES) >= one.tolerates(state, lower_mhz, RULES)


def test_where_no_requests_come_the_clock_stays() -> None:
    """Without requests, no sign would show that it had become too low for the next one."""
    assert chosen(State(1380), partition(0.0, rate_rps=0.0)) is Move.SAME
    assert chosen(State(1380)) is Move.SAME


def test_a_partition_without_requests_does_not_hold_the_others_up() -> None:
    """Silence is consent to a lower clock."""
    quiet = partition(0.0, "quiet", rate_rps=0.0)

    assert chosen(State(1380), quiet, partition(0.02)) is Move.DOWN


def test_a_clock_that_failed_is_not_tried_again_until_the_load_is_lighter_or_long_after() -> None:
    """The loop does not swing between a clock and the one that missed its latency."""
    state = State(750, (Failure(700, "a", rate_rps=100.0, at_s=0.0),))
    calm = partition(0.02)

    assert chosen(state, calm, at_s=10) is Move.SAME
    assert chosen(state, replace(calm, rate_rps=85.0), at_s=10) is Move.SAME, "that may be chance"
    assert chosen(state, replace(calm, rate_rps=70.0), at_s=10) is Move.DOWN
    assert chosen(state, partition(0.02, "b"), at_s=10) is Move.DOWN, "it failed for another"
    assert chosen(state, calm, at_s=RULES.forget_s) is Move.DOWN
    assert chosen(replace(state, clock_mhz=1000), calm, at_s=10) is Move.DOWN, "still above it"


def test_wanting_more_than_the_highest_clock_is_counted_while_it_lasts() -> None:
    """A planner that scales out learns for how long."""
    state = State(1380)
    late = Observation((partition(0.2),), FREE, 0.0)
    for _ in range(3):
        state = moved(state, decide(state, late), late)

    assert (state.clock_mhz, state.wanting, state.failures) == (1380, 3, ())
    well = Observation((partition(0.08),), FREE, 4.0)
    assert moved(state, decide(state, well), well).wanting == 0


@examples(0.4)
@given(
    work_s=st.floats(0.001, 0.2),
    fixed_s=st.floats(0.0, 0.05),
    bend=st.floats(1.0, 3.0),
    limits=limits,
)
def test_a_steady_load_finds_a_steady_clock(
    work_s: float, fixed_s: float, bend: float, limits: Bounds
) -> None:
    """Whatever the latency's dependence on the clock: at most one probe of what once failed."""
    highest = limits.highest_mhz

    def latency_s(clock_mhz: int) -> float:
        return fixed_s + work_s * math.pow(highest / clock_mhz, bend)

    clocks = _run(limits, latency_s, seconds=300)

    settled = clocks[120:]
    assert len(set(settled)) == 1
    in_time = latency_s(settled[0]) <= 0.1 * (1 - RULES.slack)
    assert in_time or settled[0] == highest


def test_the_clock_comes_down_to_where_a_further_step_would_cost_too_much() -> None:
    """The steps down end where the next one would miss the latency."""
    clocks = _run(FREE, lambda clock_mhz: 0.04 * 1380 / clock_mhz, seconds=60)

    assert clocks[0] == 1380
    assert clocks == sorted(clocks, reverse=True)
    assert 0.75 < 0.04 * 1380 / clocks[-1] / 0.1 <= 0.90


def test_where_a_queue_builds_up_the_clock_stops_short_of_it() -> None:
    """Past 700 MHz no latency would be long enough; a linear estimate walks right into it."""

    def latency_s(clock_mhz: int) -> float:
        return 0.005 / max(1e-9, 1 - 700 / clock_mhz)

    assert max(latency_s(clock_mhz) for clock_mhz in _run(FREE, latency_s, seconds=60)) < 0.09


def _run(limits: Bounds, latency_s: Callable[[int], float], seconds: int) -> list[int]:
    state, clocks = State(limits.highest_mhz), []
    for at_s in range(seconds):
        clocks.append(state.clock_mhz)
        look = Observation((partition(latency_s(state.clock_mhz)),), limits, float(at_s))
        state = moved(state, decide(state, look), look)
    return clocks

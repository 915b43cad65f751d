"""From counts to places: valid, complete, and changing least."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.config import Objective
from services.kit.errors import FailedPrecondition
from services.planner.core.model import (
    Configuration,
    Gpu,
    Problem,
    Segment,
    SegmentKind,
    SiteLimit,
)
from services.planner.core.placement.placement import clocks, place
from services.planner.core.problem.score import active_w
from services.planner.core.problem.site_power import site_w
from tests.support.examples import examples
from tests.support.planner import fleets
from tests.support.planner.placements import FLEET, POOLS, PROBLEM, configurations, ids, kinds_for


def after(problem: Problem, segments: tuple[Segment, ...]) -> Problem:
    """The same problem once the segments run."""
    return replace(problem, gpus=fleets.with_plan(problem.gpus, segments), running=segments)


def counts(segments: tuple[Segment, ...]) -> Counter[SegmentKind]:
    return Counter(segment.kind for segment in segments)


@examples(0.1)
@given(configurations(), configurations())
def test_what_is_placed_is_the_configuration_on_valid_layouts(
    before: Configuration, wanted: Configuration
) -> None:
    """From nothing and from any other plan; one clock per GPU, unique ids, shares that sum to 1."""
    fresh = ids()
    placed = place(PROBLEM, before, lambda: next(fresh))
    moved = place(after(PROBLEM, placed), wanted, lambda: next(fresh))
    for segments, configuration in ((placed, before), (moved, wanted)):
        assert counts(segments) == configuration.segments
        assert len({segment.segment_id for segment in segments}) == len(segments)
        for gpu in FLEET:
            layout = [s.placement for s in segments if s.gpu_uuid == gpu.uuid]
            assert gpu.pool.type.geometry.problem(layout) == ""
            held_mhz = {s.kind.clock_mhz for s in segments if s.gpu_uuid == gpu.uuid}
            assert held_mhz <= {clocks(segments).get(gpu.uuid, 0)}
        for name in {segment.kind.model for segment in segments}:
            shares = [segment.share for segment in segments if segment.kind.model == name]
            assert sum(shares) == pytest.approx(1.0)
        for segment in segments:
            gpu = next(gpu for gpu in FLEET if gpu.uuid == segment.gpu_uuid)
            assert (gpu.pool, gpu.node) == (segment.kind.pool, segment.node)


@examples(0.1)
@given(configurations(), st.randoms(use_true_random=False))
def test_the_same_configuration_changes_nothing_in_whatever_order_gpus_come(
    wanted: Configuration, draw: random.Random
) -> None:
    """A plan that is in force needs no action."""
    fresh = ids()
    placed = place(PROBLEM, wanted, lambda: next(fresh))
    problem = after(PROBLEM, placed)
    shuffled = list(problem.gpus)
    draw.shuffle(shuffled)
    again = place(
        replace(problem, gpus=tuple(shuffled)), wanted, lambda: pytest.fail("a new segment")
    )
    assert {s.segment_id: s for s in again} == {s.segment_id: s for s in placed}


@examples(0.1)
@given(configurations(), st.data())
def test_taking_segments_away_moves_none_of_the_others(
    wanted: Configuration, data: st.DataObject
) -> None:
    """Whatever still fits where it is stays there."""
    fresh = ids()
    placed = place(PROBLEM, wanted, lambda: next(fresh))
    left = {kind: data.draw(st.integers(0, count)) for kind, count in wanted.segments.items()}
    fewer = Configuration({kind: count for kind, count in left.items() if count}, wanted.load_rps)
    kept = place(after(PROBLEM, placed), fewer, lambda: pytest.fail("a new segment"))
    assert {s.segment_id for s in kept} <= {s.segment_id for s in placed}


def test_another_variant_takes_over_the_slice_of_the_one_it_replaces() -> None:
    """A swap, not a new slice, though six other 1g slots are free."""
    small, large = (
        next(k for k in kinds_for(POOLS[0], "1g.5gb") if k.variant == name) for name in ("v0", "v1")
    )
    fresh = ids()
    placed = place(PROBLEM, Configuration({small: 2}, {small: 1.0}), lambda: next(fresh))
    moved = place(
        after(PROBLEM, placed),
        Configuration({small: 1, large: 1}, {small: 1.0, large: 3.0}),
        lambda: next(fresh),
    )
    assert {s.placement for s in moved} == {s.placement for s in placed}
    assert len({s.segment_id for s in moved} & {s.segment_id for s in placed}) == 1
    assert {s.kind.variant: s.share for s in moved} == {"v0": 0.25, "v1": 0.75}


def test_an_empty_gpu_is_taken_before_a_running_segment_is_pushed_aside() -> None:
    """One 3g runs; a 7g is wanted instead: it goes to another GPU, so that the 3g keeps serving."""
    old = kinds_for(POOLS[0], "3g.20gb")[0]
    new = kinds_for(POOLS[0], "7g.40gb")[0]
    fresh = ids()
    placed = place(PROBLEM, Configuration({old: 1}, {old: 1.0}), lambda: next(fresh))
    moved = place(after(PROBLEM, placed), Configuration({new: 1}, {new: 1.0}), lambda: next(fresh))
    assert moved[0].gpu_uuid != placed[0].gpu_uuid


def test_a_gpu_that_only_changes_its_clock_keeps_its_segments() -> None:
    """No restart: same ids and slices; and of equal GPUs, those of the wanted clock keep it."""
    pool = POOLS[0]
    slow_mhz = round(0.6 * pool.type.max_clock_mhz)
    fast, slow = (
        next(k for k in kinds_for(pool, "7g.40gb", mhz) if (k.variant, k.batch_size) == ("v0", 8))
        for mhz in (0, slow_mhz)
    )
    fresh = ids()
    first = Configuration({fast: 2, slow: 1}, {fast: 2.0, slow: 1.0})
    placed = place(PROBLEM, first, lambda: next(fresh))
    slower = Configuration({fast: 1, slow: 2}, {fast: 1.0, slow: 2.0})
    moved = place(after(PROBLEM, placed), slower, lambda: pytest.fail("a new segment"))
    assert {s.identity for s in moved} == {s.identity for s in placed}
    before, now = clocks(placed), clocks(moved)
    assert sorted(now.values()) == [0, slow_mhz, slow_mhz]
    assert sum(before[uuid] != now[uuid] for uuid in now) == 1


def test_parking_gathers_segments_on_the_fewest_gpus() -> None:
    """Three 1g scattered over three GPUs; with parking, the two that stay share one GPU."""
    pool = POOLS[0]
    kind = kinds_for(pool, "1g.5gb")[0]
    spread = tuple(
        Segment(f"s{index}", kind, gpu.node, gpu.uuid, Placement("1g.5gb", 0), 1 / 3)
        for index, gpu in enumerate(FLEET[:3])
    )
    scattered = after(PROBLEM, spread)
    wanted = Configuration({kind: 2}, {kind: 1.0})
    calm = place(scattered, wanted, lambda: pytest.fail("a new segment"))
    assert len({segment.gpu_uuid for segment in calm}) == 2
    fresh = ids("new")
    parked = place(
        replace(scattered, objective=Objective(park_idle_gpus=True)), wanted, lambda: next(fresh)
    )
    assert len({segment.gpu_uuid for segment in parked}) == 1


def test_a_power_budget_gathers_segments_on_as_many_gpus_as_it_bears() -> None:
    """Each further GPU in use draws its context's power: running segments move without it."""
    pool = replace(POOLS[0], site="hall")
    kind = replace(kinds_for(POOLS[0], "1g.5gb")[0], pool=pool)
    gpus = tuple(Gpu(f"gpu-{index}", "node", pool) for index in range(3))
    spread = tuple(
        Segment(f"s{index}", kind, gpu.node, gpu.uuid, Placement("1g.5gb", 0), 1 / 3)
        for index, gpu in enumerate(gpus)
    )
    wanted = Configuration({kind: 2}, {kind: 1.0})
    free = replace(PROBLEM, gpus=gpus, sites=(SiteLimit("hall", 1e6, "s", 0.0),))
    for contexts in (1, 2, 3):
        drawn_w = site_w(free, {pool: contexts}, active_w(wanted))["hall"]
        limited = replace(free, sites=(SiteLimit("hall", drawn_w + 1e-6, "s", 0.0),))
        fresh = ids("new")
        placed = place(after(limited, spread), wanted, lambda: next(fresh))  # noqa: B023 - at once
        assert len({segment.gpu_uuid for segment in placed}) == min(contexts, 2)


def test_what_does_not_fit_is_refused() -> None:
    """No configuration is placed in part."""
    kind = kinds_for(POOLS[0], "7g.40gb")[0]
    with pytest.raises(FailedPrecondition, match="fit"):
        place(PROBLEM, Configuration({kind: 4}, {kind: 1.0}), lambda: "s")


def test_segments_without_load_share_equally() -> None:
    """A model whose segments serve too late still sends its requests somewhere."""
    kind = kinds_for(POOLS[0], "7g.40gb")[0]
    fresh = ids()
    placed = place(PROBLEM, Configuration({kind: 2}, {}), lambda: next(fresh))
    assert [segment.share for segment in placed] == [0.5, 0.5]


def test_gpus_are_distinguished_by_pool_only() -> None:
    """Two nodes, one pool: the plan names each GPU's own node."""
    gpus = tuple(Gpu(f"GPU-{name}", name, POOLS[0]) for name in ("left", "right"))
    problem = replace(PROBLEM, gpus=gpus)
    kind = kinds_for(POOLS[0], "7g.40gb")[0]
    fresh = ids()
    placed = place(problem, Configuration({kind: 2}, {kind: 1.0}), lambda: next(fresh))
    assert {(s.node, s.gpu_uuid) for s in placed} == {("left", "GPU-left"), ("right", "GPU-right")}


@pytest.mark.parametrize("spare", [0, 2])
def test_where_gpus_are_in_many_states_those_without_excess_segments_stay(spare: int) -> None:
    """60 GPUs, each in a state of its own, two of them losing a segment to another slice kind.

    Without spare GPUs, the slices of the new segment fit only where segments have left.
    """
    pool = POOLS[0]
    gpus = tuple(Gpu(f"GPU-{index}", "node", pool) for index in range(60 + spare))
    small, large = kinds_for(pool, "1g.5gb")[0], kinds_for(pool, "2g.10gb")[0]
    kinds = [replace(small, variant=f"v{index}") for index in range(60)]
    running = tuple(
        Segment(f"s{index}-{start}", kind, "node", gpu.uuid, Placement("1g.5gb", start), 1 / 7)
        for index, (kind, gpu) in enumerate(zip(kinds, gpus, strict=False))
        for start in range(7)
    )
    problem = replace(PROBLEM, gpus=fleets.with_plan(gpus, running), running=running)
    segments = dict.fromkeys(kinds, 7) | {kinds[3]: 5, kinds[8]: 6, large: 1}
    fresh = ids("new")
    placed = place(problem, Configuration(segments, {}), lambda: next(fresh))
    assert counts(placed) == segments
    assert {each.segment_id for each in placed} - {each.segment_id for each in running} == {"new0"}

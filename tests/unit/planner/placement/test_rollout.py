"""Rollouts, replayed on a model of the fleet that refuses what a driver would refuse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given

from cinquefoil.gpuagent.v1.records import CreateSlice, DestroySlice, LockClock, Placement
from services.kit.profiles.core.analytic import AnalyticProfile
from services.planner.core.model import Configuration, Gpu, Problem, Segment
from services.planner.core.placement.actions import Action, Rollout, StartSegment, StopSegment
from services.planner.core.placement.bridges import BridgeRoom
from services.planner.core.placement.placement import clocks, place
from services.planner.core.placement.rollout import plan_rollout
from tests.support.examples import examples
from tests.support.planner import fleets
from tests.support.planner.placements import MODELS, PROBLEM, configurations, ids, kinds_for


@dataclass
class Replay:
    """State of the driver and the workers while a rollout is replayed."""

    gpus: dict[str, Gpu]
    slices: dict[str, set[Placement]]
    running: dict[str, Segment] = field(default_factory=dict)
    clocks_mhz: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem) -> Replay:
        return cls(
            gpus={gpu.uuid: gpu for gpu in problem.gpus},
            slices={gpu.uuid: set(gpu.slices) for gpu in problem.gpus},
            running={segment.segment_id: segment for segment in problem.running},
            clocks_mhz={gpu.uuid: gpu.clock_mhz for gpu in problem.gpus},
        )

    def run(self, rollout: Rollout) -> None:
        check_clocks(self.clocks_mhz, rollout)
        for stage in rollout.stages:
            assert stage.serving <= set(self.running), "serving names what does not run"
            stopping = {
                action.segment_id
                for step in stage.actions
                for action in step
                if isinstance(action, StopSegment)
            }
            assert not stage.serving & stopping, "traffic for what stops"
            for step in stage.actions:
                assert step, "an empty step"
                for action in step:
                    self.do(action)

    def do(self, action: Action) -> None:
        match action:
            case CreateSlice(gpu_uuid, placement):
                assert placement not in self.slices[gpu_uuid]
                self.slices[gpu_uuid].add(placement)
                geometry = self.gpus[gpu_uuid].pool.type.geometry
                assert geometry.problem(sorted(self.slices[gpu_uuid])) == ""
            case DestroySlice(gpu_uuid, placement):
                spots = {(s.gpu_uuid, s.placement) for s in self.running.values()}
                assert (gpu_uuid, placement) not in spots, "destroys an occupied slice"
                self.slices[gpu_uuid].remove(placement)
            case StartSegment(segment):
                assert segment.placement in self.slices[segment.gpu_uuid]
                assert segment.segment_id not in self.running
                self.running[segment.segment_id] = segment
            case StopSegment(segment_id, gpu_uuid):
                assert self.running.pop(segment_id).gpu_uuid == gpu_uuid
            case LockClock(gpu_uuid, clock_mhz):
                assert self.clocks_mhz[gpu_uuid] != clock_mhz
                self.clocks_mhz[gpu_uuid] = clock_mhz


def check_clocks(now_mhz: Mapping[str, int], rollout: Rollout) -> None:
    """Clocks that rise do so before any other action, those that fall after all others."""
    order = [step for stage in rollout.stages for step in stage.actions]
    for position, step in enumerate(order):
        for action in step:
            if isinstance(action, LockClock):
                rises = (action.clock_mhz or math.inf) > (now_mhz[action.gpu_uuid] or math.inf)
                assert position == (0 if rises else len(order) - 1)


def rolled(
    problem: Problem, target: Sequence[Segment], spare: BridgeRoom | None = None
) -> tuple[Rollout, Replay]:
    rollout = plan_rollout(problem.gpus, problem.running, target, problem.models, spare)
    replay = Replay.of(problem)
    replay.run(rollout)
    return rollout, replay


@pytest.mark.timeout(300)  # 5 s of processor, for which a busy machine takes a minute
@examples(0.12)
@given(configurations(), configurations(), configurations())
def test_every_rollout_is_safe_and_ends_in_its_target(
    first: Configuration, second: Configuration, third: Configuration
) -> None:
    """No overlap, no occupied slice destroyed, only running segments serve, over three plans."""
    fresh = ids()
    problem = PROBLEM
    for configuration in (first, second, third):
        target = place(problem, configuration, lambda: next(fresh))
        _, replay = rolled(problem, target)
        assert replay.running == {s.segment_id: running_or(problem, s) for s in target}
        for segment in target:
            assert segment.placement in replay.slices[segment.gpu_uuid]
        held_mhz = clocks(target)
        assert replay.clocks_mhz == {g.uuid: held_mhz.get(g.uuid, 0) for g in problem.gpus}
        problem = replace(
            problem,
            gpus=tuple(
                replace(
                    gpu,
                    slices=tuple(sorted(replay.slices[gpu.uuid])),
                    clock_mhz=replay.clocks_mhz[gpu.uuid],
                )
                for gpu in problem.gpus
            ),
            running=target,
        )


def running_or(problem: Problem, segment: Segment) -> Segment:
    """Return the segment that already runs, with its old share; else the given one."""
    return next((s for s in problem.running if s.segment_id == segment.segment_id), segment)


@examples(0.1)
@given(configurations(), configurations())
def test_who_serves_before_and_after_serves_throughout_where_that_is_possible(
    before: Configuration, wanted: Configuration
) -> None:
    """A model may be without a segment only where all its old ones make room for others.

    And `least_capacity` is 0 exactly if a stage leaves the model nothing.
    """
    fresh = ids()
    running = place(PROBLEM, before, lambda: next(fresh))
    problem = replace(PROBLEM, gpus=fleets.with_plan(PROBLEM.gpus, running), running=running)
    target = place(problem, wanted, lambda: next(fresh))
    rollout, _ = rolled(problem, target)
    known = {s.segment_id: s for s in (*running, *target)}
    for model in MODELS:
        lost = any(
            not any(known[each].kind.model == model.name for each in stage.serving)
            for stage in rollout.stages
        )
        has_old = any(s.kind.model == model.name for s in running)
        has_new = any(s.kind.model == model.name for s in target)
        undisturbed = any(
            s.kind.model == model.name and not disturbed(problem, s, target) for s in running
        )
        if has_old and has_new and undisturbed:
            assert not lost
        if has_old and has_new and rollout.stages:
            assert (rollout.least_capacity[model.name] == 0) == lost


@examples(0.1)
@given(configurations(), configurations())
def test_bridges_never_take_capacity_and_are_gone_at_the_end(
    before: Configuration, wanted: Configuration
) -> None:
    """Rollouts with bridges are as safe, and leave each model at least as much as without."""
    fresh = ids()
    running = place(PROBLEM, before, lambda: next(fresh))
    problem = replace(PROBLEM, gpus=fleets.with_plan(PROBLEM.gpus, running), running=running)
    target = place(problem, wanted, lambda: next(fresh))
    plain, _ = rolled(problem, target)
    bridged, replay = rolled(problem, target, BridgeRoom(problem.gpus, lambda: next(fresh)))
    assert set(replay.running) == {each.segment_id for each in target}
    for name, least in plain.least_capacity.items():
        assert bridged.least_capacity[name] >= least - 1e-9


def test_a_model_that_is_rebuilt_is_served_from_a_gpu_that_is_free() -> None:
    """One GPU changes its slices; the other, empty before and after, serves meanwhile."""
    halves, whole = Placement("3g.20gb", 0), Placement("7g.40gb", 0)
    old, new = segment("old", "v0", halves), segment("new", "v1", whole)
    least_rps = min(old.kind.throughput_rps, new.kind.throughput_rps)
    model = replace(MODELS[0], demand_rps=least_rps)
    gpus = [replace(GPU, slices=(halves,)), replace(GPU, uuid="GPU-1")]
    without = plan_rollout(gpus, [old], [new], [model])
    assert without.least_capacity == {"one": 0.0}
    rollout = plan_rollout(gpus, [old], [new], [model], BridgeRoom(gpus, lambda: "bridge"))
    assert rollout.least_capacity["one"] >= 1.0
    assert steps(rollout) == [
        [["CreateSlice"], ["StartSegment"]],
        [["StopSegment"], ["DestroySlice"], ["CreateSlice"], ["StartSegment"]],
        [["StopSegment"], ["DestroySlice"]],
    ]
    assert [stage.serving for stage in rollout.stages] == [{"old"}, {"bridge"}, {"new"}]


def test_a_bridge_is_never_of_a_variant_that_was_removed() -> None:
    """A variant that was taken out of service runs until it is stopped, and starts nowhere."""
    halves, whole = Placement("3g.20gb", 0), Placement("7g.40gb", 0)
    old, new = segment("old", "v0", halves), segment("new", "v1", whole)
    left = tuple(each for each in MODELS[0].variants if each.name == "v1")
    model = replace(MODELS[0], demand_rps=1.0, variants=left)
    gpus = [replace(GPU, slices=(halves,)), replace(GPU, uuid="GPU-1")]
    rollout = plan_rollout(gpus, [old], [new], [model], BridgeRoom(gpus, lambda: "bridge"))
    assert [each.kind.variant for each in rollout.bridges] == ["v1"]


def test_without_room_there_is_no_bridge() -> None:
    """GPUs that plans may not use, and slices that the plan needs, are no room."""
    halves, whole = Placement("3g.20gb", 0), Placement("7g.40gb", 0)
    old, new = segment("old", "v0", halves), segment("new", "v1", whole)
    gpus = [replace(GPU, slices=(halves,)), replace(GPU, uuid="GPU-1")]
    model = replace(MODELS[0], demand_rps=1.0)
    spare = BridgeRoom(gpus[:1], lambda: pytest.fail("a bridge without room"))
    assert plan_rollout(gpus, [old], [new], [model], spare).bridges == ()


def disturbed(problem: Problem, segment: Segment, target: Sequence[Segment]) -> bool:
    """Return whether others take a segment's place."""
    if segment.segment_id in {s.segment_id for s in target}:
        return False
    geometry = next(g for g in problem.gpus if g.uuid == segment.gpu_uuid).pool.type.geometry
    return any(
        geometry.overlap(segment.placement, s.placement)
        for s in target
        if s.gpu_uuid == segment.gpu_uuid
    )


POOL = fleets.pool()
GPU = Gpu("GPU-0", "node-0", POOL)


def segment(name: str, variant: str, placement: Placement) -> Segment:
    kind = next(k for k in kinds_for(POOL, placement.profile) if k.variant == variant)
    return Segment(name, replace(kind, model="one"), "node-0", "GPU-0", placement, 1.0)


def steps(rollout: Rollout) -> list[list[list[str]]]:
    return [
        [[type(a).__name__ for a in step] for step in stage.actions] for stage in rollout.stages
    ]


def test_a_variant_is_swapped_by_make_before_break() -> None:
    """The new segment starts on the same slice, then traffic shifts, then the old one stops."""
    spot = Placement("3g.20gb", 0)
    old, new = segment("old", "v0", spot), segment("new", "v1", spot)
    rollout = plan_rollout([replace(GPU, slices=(spot,))], [old], [new], MODELS)
    assert steps(rollout) == [[["StartSegment"]], [["StopSegment"]]]
    assert [stage.serving for stage in rollout.stages] == [{"old"}, {"new"}]
    assert min(rollout.least_capacity.values()) == 0  # model "two" has nothing
    assert rollout.least_capacity["one"] > 0


def test_a_swap_breaks_first_where_both_do_not_fit_in_memory() -> None:
    """Two processes of 3 GiB do not fit on 1g.5gb together."""
    big = fleets.model("one", gmacs=(1.0, 2.0), accuracies=(70.0, 80.0))
    heavy = tuple(replace(v, profile=AnalyticProfile(1.0, memory_mib=3000)) for v in big.variants)
    spot = Placement("1g.5gb", 0)
    old, new = segment("old", "v0", spot), segment("new", "v1", spot)
    rollout = plan_rollout(
        [replace(GPU, slices=(spot,))], [old], [new], [replace(big, variants=heavy)]
    )
    assert steps(rollout) == [[["StopSegment"], ["StartSegment"]]]
    assert rollout.stages[0].serving == frozenset()
    assert rollout.least_capacity == {"one": 0.0}


def test_a_repartition_drains_destroys_creates_and_starts_in_this_order() -> None:
    """Each step finds what it needs from the one before."""
    half, quarters = Placement("3g.20gb", 0), (Placement("2g.10gb", 0), Placement("2g.10gb", 2))
    other = Placement("3g.20gb", 4)
    stays = segment("stays", "v0", other)
    old = segment("old", "v0", half)
    new = [segment(f"new{index}", "v0", spot) for index, spot in enumerate(quarters)]
    rollout = plan_rollout(
        [replace(GPU, slices=(half, other))], [old, stays], [stays, *new], MODELS[:1]
    )
    assert steps(rollout) == [
        [["StopSegment"], ["DestroySlice"], ["CreateSlice"] * 2, ["StartSegment"] * 2]
    ]
    assert rollout.stages[0].serving == {"stays"}


def test_free_space_grows_first_and_surplus_goes_last() -> None:
    """A 7g is replaced by what is on another GPU: start there, then stop here."""
    elsewhere = replace(GPU, uuid="GPU-1")
    spot = Placement("7g.40gb", 0)
    old = segment("old", "v0", spot)
    new = replace(segment("new", "v1", spot), gpu_uuid="GPU-1")
    rollout = plan_rollout([replace(GPU, slices=(spot,)), elsewhere], [old], [new], MODELS[:1])
    assert steps(rollout) == [[["CreateSlice"], ["StartSegment"]], [["StopSegment"]]]
    assert [stage.serving for stage in rollout.stages] == [{"old"}, {"new"}]
    assert rollout.least_capacity["one"] > 0


def many(count: int, profile: str, variant: str, prefix: str) -> tuple[list[Gpu], list[Segment]]:
    """One whole-GPU or half-GPU segment on each of `count` GPUs."""
    spot = Placement(profile, 0)
    gpus = [replace(GPU, uuid=f"GPU-{index}", slices=(spot,)) for index in range(count)]
    return gpus, [
        replace(segment(f"{prefix}{index}", variant, spot), gpu_uuid=f"GPU-{index}")
        for index in range(count)
    ]


def test_as_many_gpus_change_at_a_time_as_the_demand_spares() -> None:
    """Ten GPUs, load for six: four change at once, then the next, never below the demand."""
    gpus, old = many(10, "7g.40gb", "v1", "old")
    _, new = many(10, "4g.20gb", "v0", "new")
    rate_rps = old[0].kind.throughput_rps
    model = replace(MODELS[0], demand_rps=6 * rate_rps)
    rollout = plan_rollout(gpus, old, new, [model])
    assert len(rollout.stages[0].serving) == 6
    assert rollout.least_capacity["one"] >= 1.0 - 1e-9
    assert len(rollout.stages) < 10


def test_gpus_change_one_at_a_time_where_the_demand_spares_none() -> None:
    """Two GPUs of a model that needs both are never away together."""
    gpus, old = many(4, "7g.40gb", "v1", "old")
    _, new = many(4, "4g.20gb", "v1", "new")
    model = replace(MODELS[0], demand_rps=10 * old[0].kind.throughput_rps)
    rollout = plan_rollout(gpus, old, new, [model])
    assert [len(stage.serving) for stage in rollout.stages] == [3, 3, 3, 3]


def test_nothing_to_do_is_an_empty_rollout() -> None:
    """A fleet that is as desired is left alone."""
    gpus, segments = many(3, "7g.40gb", "v0", "s")
    rollout = plan_rollout(gpus, segments, segments, MODELS[:1])
    assert rollout.stages == ()
    assert rollout.actions == 0
    assert rollout.slice_changes == 0


def test_a_model_without_demand_has_capacity_to_spare() -> None:
    """It holds up no step of a rollout."""
    gpus, segments = many(1, "7g.40gb", "v0", "s")
    idle = replace(MODELS[0], demand_rps=0.0)
    assert plan_rollout(gpus, segments, [], [idle]).least_capacity == {"one": math.inf}


def test_whatever_runs_beyond_the_reported_slices_is_stopped_too() -> None:
    """A segment whose slice the inventory lacks still gets its stop."""
    gpus, segments = many(1, "7g.40gb", "v0", "s")
    bare = [replace(gpu, slices=()) for gpu in gpus]
    assert steps(plan_rollout(bare, segments, [], MODELS[:1])) == [[["StopSegment"]]]


def test_a_clock_falls_last_and_rises_first() -> None:
    """Two segments run on; the one whose GPU slows down counts as slow in the end, not before."""
    spot = Placement("3g.20gb", 0)
    fast = segment("one", "v0", spot)
    slow = replace(
        fast, kind=replace(fast.kind, clock_mhz=846, throughput_rps=0.6 * fast.kind.throughput_rps)
    )
    demanding = [replace(MODELS[0], demand_rps=fast.kind.throughput_rps)]
    held = replace(GPU, slices=(spot,), clock_mhz=846)
    lowered = plan_rollout([replace(held, clock_mhz=0)], [fast], [slow], demanding)
    raised = plan_rollout([held], [slow], [fast], demanding)
    assert steps(lowered) == steps(raised) == [[["LockClock"]]]
    assert lowered.stages[0].serving == raised.stages[0].serving == {"one"}
    assert lowered.least_capacity["one"] == pytest.approx(0.6)
    assert raised.least_capacity["one"] == pytest.approx(1.0)
    emptied = plan_rollout([held], [], [], demanding)
    assert emptied.stages[0].actions == ((LockClock("GPU-0", 0),),)

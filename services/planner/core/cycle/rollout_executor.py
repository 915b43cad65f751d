"""Execution of a rollout, stage by stage: routes first, then a change on each node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cinquefoil.gpuagent.v1.records import CreateSlice, DestroySlice, LockClock
from cinquefoil.planner.v1.records import Plan, PlannedSegment
from services.kit.errors import ServiceError
from services.kit.grouping import grouped
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.environment import Environment, NodeChange
from services.planner.core.decide import Decision
from services.planner.core.fleet import serves
from services.planner.core.placement.actions import (
    Action,
    Stage,
    StartSegment,
    StopSegment,
)
from services.planner.core.plan import planned
from services.planner.core.routing_table import by_capacity

_ACKNOWLEDGE_S = 2.0
_READY_S = 60.0
_STEP_S = 120.0
_MIN_GRACE_S = 5.0


class StepFailed(Exception):
    """A rollout stopped part-way. The message names the step and its error."""


@dataclass(frozen=True, slots=True, eq=False)
class RolloutExecutor:
    """Executes one rollout at a time."""

    _state: ClusterState
    _environment: Environment

    async def execute(self, plan: Plan, decision: Decision) -> None:
        """Bring the fleet to a decided plan: afterwards its segments serve, with its shares.

        Raises:
            StepFailed: The fleet is in an intermediate state.
        """
        environment, segments = self._environment, may_serve(decision)
        wanted = frozenset(segment.spec.segment_id for segment in plan.segments)
        bridges = frozenset(each.segment_id for each in decision.rollout.bridges)
        for number, stage in enumerate(decision.rollout.stages, start=1):
            await self._ready(stage.serving & (wanted | bridges))
            serving = by_capacity(segments[each] for each in sorted(stage.serving))
            revision = await environment.serve(plan.version, serving)
            if stops(stage):
                await self._acknowledged(revision)
            changes = [
                self._perform(change)
                for change in _changes(f"{plan.version}.{number}", stage, decision)
            ]
            failures = [failure for failure in await environment.together(changes) if failure]
            if failures:
                raise StepFailed("; ".join(failures))
        await self._ready(wanted)
        await environment.serve(plan.version, plan.segments)

    async def _ready(self, segment_ids: frozenset[str]) -> None:
        """Wait until agents report that these segments serve: results may arrive before reports."""
        fleet, left = self._state.fleet, list(segment_ids)

        def ready(segment_id: str) -> bool:
            running = fleet.segments().get(segment_id)
            return running is not None and serves(running)

        def all_ready() -> bool:
            while left and ready(left[-1]):  # mostly one at a time: scanning a fleet is slow
                left.pop()
            return not left

        if not await self._state.changed.until(all_ready, _READY_S):
            raise StepFailed(f"segment {left[-1]} was not ready within {_READY_S:g} s")

    async def _acknowledged(self, revision: int) -> None:
        """Give routers a moment to take the routes off segments about to stop."""
        if not await self._environment.acknowledged(revision, _ACKNOWLEDGE_S):
            # Safe to continue: a stopped worker refuses requests, and routers try another.
            self._environment.log.warning(
                "routers slow to take the routing table", revision=revision
            )

    async def _perform(self, change: NodeChange) -> str:
        """Run a node's part of a stage; return the failure, or "".

        Never raises for a failed step: other nodes' parts must end before routes change again.
        """
        actions = [action for group in change.groups for action, _ in group]
        began_s = self._state.clock.monotonic()
        try:
            await self._environment.perform(change)
        except ServiceError as error:
            what = f"change of {change.node}"
            if len(actions) == 1:
                what = f"{_words(actions[0])} on {change.node}"
            return f"step {change.change_id} ({what}): {error.status}: {error.message}"
        self._note_boots(actions, self._state.clock.monotonic() - began_s)
        return ""

    def _note_boots(self, actions: Sequence[Action], took_s: float) -> None:
        """Learn how long workers take to start, from a change that waited for nothing else."""
        if any(isinstance(action, StopSegment) for action in actions):
            return
        for action in actions:
            if isinstance(action, StartSegment):
                kind = action.segment.kind
                self._state.boots.observe(kind.model, kind.variant, took_s)


def stops(stage: Stage) -> frozenset[str]:
    """Return the ids of the segments that a stage stops."""
    return frozenset(
        action.segment_id
        for group in stage.actions
        for action in group
        if isinstance(action, StopSegment)
    )


def may_serve(decision: Decision) -> dict[str, PlannedSegment]:
    """Return the segments that may serve during a decision's rollout, by id."""
    each_of = (*decision.running, *decision.rollout.bridges, *decision.target)
    return {segment.segment_id: planned(segment) for segment in each_of}


def _changes(prefix: str, stage: Stage, decision: Decision) -> Iterator[NodeChange]:
    """Yield each node's part of a stage, in order.

    Nodes do not wait for one another: within a stage no segment stops for one that another starts.
    """
    slo_s = {model.name: model.slo_latency_s for model in decision.problem.models}
    models = {segment.segment_id: segment.kind.model for segment in decision.running}

    def timed(action: Action) -> tuple[Action, float]:
        """Return an action with the time for accepted requests, s."""
        if not isinstance(action, StopSegment) or action.segment_id not in models:
            return action, 0.0
        return action, max(_MIN_GRACE_S, 2 * slo_s.get(models[action.segment_id], 0.0))

    by_node = (
        grouped((decision.nodes[_gpu_uuid(action)], timed(action)) for action in actions)
        for actions in stage.actions
    )
    parts = grouped(part for each in by_node for part in each.items())
    for node, groups in parts.items():
        timeout_s = sum(_STEP_S + max(grace_s for _, grace_s in group) for group in groups)
        yield NodeChange(f"{prefix}.{node}", node, groups, timeout_s)


def _gpu_uuid(action: Action) -> str:
    return action.segment.gpu_uuid if isinstance(action, StartSegment) else action.gpu_uuid


def _words(action: Action) -> str:
    match action:
        case StartSegment(segment):
            return f"start {segment.segment_id}"
        case StopSegment(segment_id):
            return f"stop {segment_id}"
        case CreateSlice(_, placement):
            return f"create {placement}"
        case DestroySlice(_, placement):
            return f"destroy {placement}"
        case LockClock(_, clock_mhz):
            return f"lock the clock at {clock_mhz} MHz"

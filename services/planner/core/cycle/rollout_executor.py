"""Carries a rollout out, stage by stage: routes first, then a change on each node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.kit.errors import ServiceError
from services.kit.segment import CreateSlice, DestroySlice, LockClock
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.environment import Environment, NodeChange
from services.planner.core.decide import Decision
from services.planner.core.placement.actions import (
    Action,
    Rollout,
    Stage,
    StartSegment,
    StopSegment,
)
from services.planner.core.plan import Plan, PlannedSegment
from services.planner.core.routing_table import by_capacity

_ACKNOWLEDGE_S = 2.0
_READY_S = 60.0
_STEP_S = 120.0
_MIN_GRACE_S = 5.0


class StepFailed(Exception):
    """A rollout stopped half-way. The message names the step and its error."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a rollout's segment and GPU names stand for.

    Attributes:
        nodes: Node by GPU UUID.
        segments: What may serve during the rollout, by segment id.
        grace_s: Time that accepted requests get when a segment stops, s, by segment id.
    """

    nodes: Mapping[str, str]
    segments: Mapping[str, PlannedSegment]
    grace_s: Mapping[str, float]

    @classmethod
    def of(cls, decision: Decision) -> Context:
        """Return what the names in a decision's rollout stand for."""
        slo_s = {model.name: model.slo_latency_s for model in decision.problem.models}
        return cls(
            nodes=decision.nodes,
            segments={
                segment.segment_id: PlannedSegment.of(segment)
                for segment in (*decision.running, *decision.target)
            },
            grace_s={
                segment.segment_id: max(_MIN_GRACE_S, 2 * slo_s.get(segment.kind.model, 0.0))
                for segment in decision.running
            },
        )


@dataclass(frozen=True, slots=True, eq=False)
class RolloutExecutor:
    """Executes one rollout at a time."""

    _state: ClusterState
    _environment: Environment

    async def execute(self, plan: Plan, rollout: Rollout, context: Context) -> None:
        """Bring the fleet to a plan; afterwards its segments serve, with its shares.

        Raises:
            StepFailed: The fleet is somewhere between.
        """
        environment = self._environment
        wanted = frozenset(segment.spec.segment_id for segment in plan.segments)
        for number, stage in enumerate(rollout.stages, start=1):
            await self._ready(stage.serving & wanted)
            serving = by_capacity(context.segments[each] for each in sorted(stage.serving))
            revision = await environment.serve(plan.version, serving)
            if stops(stage):
                await self._acknowledged(revision)
            changes = [
                self._perform(change)
                for change in _changes(f"{plan.version}.{number}", stage, context)
            ]
            failures = [failure for failure in await environment.together(changes) if failure]
            if failures:
                raise StepFailed("; ".join(failures))
        await self._ready(wanted)
        await environment.serve(plan.version, plan.segments)

    async def _ready(self, segment_ids: frozenset[str]) -> None:
        """Wait until agents report that these segments serve: results may outrun reports."""
        fleet, left = self._state.fleet, list(segment_ids)

        def ready(segment_id: str) -> bool:
            running = fleet.segments().get(segment_id)
            return running is not None and running.serves

        def all_ready() -> bool:
            while left and ready(left[-1]):  # mostly one at a time: a fleet is long to look through
                left.pop()
            return not left

        if not await self._state.changed.until(all_ready, _READY_S):
            raise StepFailed(f"segment {left[-1]} was not ready within {_READY_S:g} s")

    async def _acknowledged(self, revision: int) -> None:
        """Give routers a moment to take the routes off what is about to stop."""
        if not await self._environment.acknowledged(revision, _ACKNOWLEDGE_S):
            # Safe to go on: a worker that is stopped refuses, and routers then try another.
            self._environment.log.warning(
                "routers slow to take the routing table", revision=revision
            )

    async def _perform(self, change: NodeChange) -> str:
        """Have a node do its part of a stage; return what went wrong, or "".

        Never raises for a failed step: other nodes' parts must end before routes change again.
        """
        try:
            await self._environment.perform(change)
        except ServiceError as error:
            actions = [action for group in change.groups for action, _ in group]
            what = f"change of {change.node}"
            if len(actions) == 1:
                what = f"{_words(actions[0])} on {change.node}"
            return f"step {change.change_id} ({what}): {error.status}: {error.message}"
        return ""


def stops(stage: Stage) -> frozenset[str]:
    """Return the ids of the segments that a stage stops."""
    return frozenset(
        action.segment_id
        for group in stage.actions
        for action in group
        if isinstance(action, StopSegment)
    )


def _changes(prefix: str, stage: Stage, context: Context) -> Iterator[NodeChange]:
    """Yield each node's part of a stage, its order kept.

    Nodes do not wait for one another: within a stage no segment stops for what another starts.
    """
    parts: dict[str, list[Sequence[tuple[Action, float]]]] = {}
    for actions in stage.actions:
        group: dict[str, list[tuple[Action, float]]] = {}
        for action in actions:
            timed = (action, _grace_s(action, context))
            group.setdefault(context.nodes[_gpu_uuid(action)], []).append(timed)
        for node, here in group.items():
            parts.setdefault(node, []).append(here)
    for node, groups in parts.items():
        timeout_s = sum(_STEP_S + max(grace_s for _, grace_s in group) for group in groups)
        yield NodeChange(f"{prefix}.{node}", node, groups, timeout_s)


def _gpu_uuid(action: Action) -> str:
    return action.segment.gpu_uuid if isinstance(action, StartSegment) else action.gpu_uuid


def _grace_s(action: Action, context: Context) -> float:
    """Return the time that accepted requests get, s."""
    if isinstance(action, StopSegment):
        return context.grace_s.get(action.segment_id, 0.0)
    return 0.0


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

"""Carries a rollout out, stage by stage: routes first, then a change on each node."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.kit.errors import ServiceError
from services.kit.telemetry import logs
from services.planner.adapters.agent_sessions import Agents
from services.planner.adapters.router_sessions import Routers
from services.planner.adapters.wire.convert_node import change_to, step_to
from services.planner.change_event import Notice
from services.planner.control.publisher import Announcer
from services.planner.core.decide import Decision
from services.planner.core.fleet import Fleet
from services.planner.core.placement.actions import (
    Action,
    CreateSlice,
    DestroySlice,
    LockClock,
    Rollout,
    Stage,
    StartSegment,
    StopSegment,
)
from services.planner.core.plan import Plan, PlannedSegment
from services.planner.core.routing_table import by_capacity

_log = logs.get("executor")

_ACKNOWLEDGE_S = 2.0
_READY_S = 60.0
_STEP_S = 120.0
_LEAST_GRACE_S = 5.0

_Groups = Sequence[Sequence[Action]]
"""Actions in order; those of one group at the same time."""


class StepFailed(Exception):
    """A rollout stopped half-way. The message names the step and its error."""


@dataclass(frozen=True, slots=True)
class Way:
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
    def of(cls, decision: Decision) -> Way:
        """Return what the names in a decision's rollout stand for."""
        slo_s = {model.name: model.slo_latency_s for model in decision.problem.models}
        return cls(
            nodes=decision.nodes,
            segments={
                segment.segment_id: PlannedSegment.of(segment)
                for segment in (*decision.running, *decision.target)
            },
            grace_s={
                segment.segment_id: max(_LEAST_GRACE_S, 2 * slo_s.get(segment.kind.model, 0.0))
                for segment in decision.running
            },
        )


class Executor:
    """Executes one rollout at a time."""

    def __init__(
        self,
        fleet: Fleet,
        agents: Agents,
        routers: Routers,
        announcer: Announcer,
        changed: Notice,
    ) -> None:
        self._fleet = fleet
        self._agents = agents
        self._routers = routers
        self._announcer = announcer
        self._changed = changed

    async def execute(self, plan: Plan, rollout: Rollout, way: Way) -> None:
        """Bring the fleet to a plan; afterwards its segments serve, with its shares.

        Raises:
            StepFailed: The fleet is somewhere between.
        """
        wanted = frozenset(segment.spec.segment_id for segment in plan.segments)
        for number, stage in enumerate(rollout.stages, start=1):
            await self._ready(stage.serving & wanted)
            serving = by_capacity(way.segments[each] for each in sorted(stage.serving))
            revision = await self._announcer.serve(plan.version, serving)
            if any(isinstance(each, StopSegment) for step in stage.actions for each in step):
                await self._acknowledged(revision)
            await self._act(f"{plan.version}.{number}", stage, way)
        await self._ready(wanted)
        await self._announcer.serve(plan.version, plan.segments)

    async def _ready(self, segment_ids: frozenset[str]) -> None:
        """Wait until agents report that these segments serve: results may outrun reports."""

        def missing() -> list[str]:
            running = self._fleet.segments()
            return [each for each in segment_ids if each not in running or not running[each].serves]

        if not await self._changed.until(lambda: not missing(), _READY_S):
            raise StepFailed(f"segment {missing()[0]} was not ready within {_READY_S:g} s")

    async def _acknowledged(self, revision: int) -> None:
        """Give routers a moment to take the routes off what is about to stop."""
        if not await self._routers.acknowledged(revision, _ACKNOWLEDGE_S):
            # Safe to go on: a worker that is stopped refuses, and routers then try another.
            _log.warning("routers slow to take the routing table", revision=revision)

    async def _act(self, prefix: str, stage: Stage, way: Way) -> None:
        """Have every node do its part, as one change where it is more than one action.

        Nodes do not wait for one another: within a stage nobody stops for what another starts.
        """
        async with asyncio.TaskGroup() as tasks:
            changes = [
                tasks.create_task(self._perform(f"{prefix}.{node}", node, groups, way))
                for node, groups in _by_node(stage, way).items()
            ]
        failures = [failure for change in changes if (failure := change.result())]
        if failures:
            raise StepFailed("; ".join(failures))

    async def _perform(self, step_id: str, node: str, groups: _Groups, way: Way) -> str:
        """Have a node do its part of a stage; return what went wrong, or "".

        Never raises for a failed step: other nodes' parts must end before routes change again.
        """
        timed = [[(action, _grace_s(action, way)) for action in group] for group in groups]
        alone = timed[0][0] if sum(map(len, timed)) == 1 else None
        step = step_to(step_id, *alone) if alone else change_to(step_id, timed)
        timeout_s = sum(_STEP_S + max(grace_s for _, grace_s in group) for group in timed)
        try:
            await self._agents.perform(node, step, timeout_s)
        except ServiceError as error:
            what = f"{_words(alone[0])} on {node}" if alone else f"change of {node}"
            return f"step {step_id} ({what}): {error.status}: {error.message}"
        return ""


def _by_node(stage: Stage, way: Way) -> Mapping[str, _Groups]:
    """Return each node's part of a stage, its order kept."""
    parts: dict[str, list[list[Action]]] = {}
    for actions in stage.actions:
        group: dict[str, list[Action]] = {}
        for action in actions:
            group.setdefault(way.nodes[_gpu_uuid(action)], []).append(action)
        for node, here in group.items():
            parts.setdefault(node, []).append(here)
    return parts


def _gpu_uuid(action: Action) -> str:
    return action.segment.gpu_uuid if isinstance(action, StartSegment) else action.gpu_uuid


def _grace_s(action: Action, way: Way) -> float:
    """Return the time that accepted requests get, s."""
    if isinstance(action, StopSegment):
        return way.grace_s.get(action.segment_id, 0.0)
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

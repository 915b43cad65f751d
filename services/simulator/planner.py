"""Environment of the planner's decision cycle in virtual time.

The cycle itself is the planner's own (`services.planner.core.cycle`). Live it awaits asyncio, a
database, agents and routers; here it awaits virtual time, a list, simulated nodes and the simulated
router.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any, TypeVar

from simpy import Environment, Event

from cinquefoil.planner.v1.records import Plan, PlannedSegment, PlanState, RoutingTable
from services.kit.config import Deployment
from services.planner.adapters.wire.convert import routing_to
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.environment import Draft, NodeChange
from services.planner.core.decide import Snapshot
from services.planner.core.fixed_inputs import FixedInputs
from services.planner.core.online_search.profile_corrections import Beliefs
from services.planner.core.placement.actions import Action
from services.planner.core.routing_table import routes
from services.planner.core.triggers import Kind
from services.router.adapters.convert import to_table
from services.simulator.nodes import Nodes
from services.simulator.router import Router
from services.simulator.scenario import Timing
from services.simulator.stats.run_record import PlanRecord
from services.simulator.timeline import Waiting

_TICK_S = 1e-6
"""Smallest time step that advances a clock in floats, s."""

_AT_ONCE = Timing(**dict.fromkeys(Timing.model_fields, 0.0))

T = TypeVar("T")


def process_of(work: Coroutine[Any, Any, T]) -> Generator[Event, Any, T]:
    """Return a coroutine that awaits events of virtual time as a process of it."""
    return (yield from work.__await__())


@types.coroutine
def _happens(event: Event) -> Generator[Event, Any, Any]:
    """Wait for an event; return its value."""
    return (yield event)


@types.coroutine
def _ends(work: Waiting) -> Waiting:
    """Wait for a process that awaits events by yielding them; return its value."""
    return (yield from work)


class PlannerClock:
    """Virtual time as the planner's clock."""

    def __init__(self, env: Environment, start: datetime) -> None:
        self._env = env
        self._start = start
        self._read = (0.0, start)

    def now(self) -> datetime:
        """Return the time of day."""
        if self._env.now != self._read[0]:
            self._read = (self._env.now, self._start + timedelta(seconds=self._env.now))
        return self._read[1]

    def monotonic(self) -> float:
        """Return virtual time, s."""
        return float(self._env.now)


class VirtualChangeEvent:
    """Wakes processes that wait for a change. Attributes: count (of changes so far)."""

    def __init__(self, env: Environment) -> None:
        self.count = 0
        self._env = env
        self._changed = env.event()

    def notify(self) -> None:
        """Wake every waiter after a change."""
        self.count += 1
        self._changed.succeed()
        self._changed = self._env.event()

    async def after(self, seen: int, timeout_s: float = math.inf) -> None:
        """Wait until there were more than `seen` changes, at most `timeout_s`."""
        await self.until(lambda: self.count > seen, timeout_s)

    async def until(self, holds: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Wait until `holds()`, at most `timeout_s`; return whether it does."""
        if holds():
            return True
        end = self._env.timeout(max(timeout_s, _TICK_S)) if math.isfinite(timeout_s) else None
        while not holds():
            await _happens(self._changed if end is None else self._changed | end)
            if end is not None and end.processed:
                return holds()
        return True


class PlanLog:
    """Plans in memory."""

    def __init__(self) -> None:
        self._plans: list[Plan] = []

    async def add(
        self,
        plan: Plan,
        gpus: Mapping[tuple[str, str], str],
        snapshot: Snapshot | None = None,
        *,
        fixed: FixedInputs | None = None,
        pin: str | None = None,
    ) -> Plan:
        """Store a new plan and return it with its version; other arguments are not needed."""
        self._plans.append(replace(plan, version=len(self._plans) + 1))
        return self._plans[-1]

    async def set_state(self, version: int, state: PlanState, failure: str = "") -> None:
        """Store the state of a plan."""
        self._plans[version - 1] = replace(self._plans[version - 1], state=state, failure=failure)

    async def plan(self, version: int = 0) -> Plan:
        """Return a plan; version 0: the newest."""
        return self._plans[version - 1]

    async def save_beliefs(self, beliefs: Beliefs) -> None:
        """Store nothing: every simulation begins without beliefs."""


@dataclass(eq=False)
class VirtualEnvironment:
    """Environment of the decision cycle in virtual time, including its log and its metrics.

    Attributes:
        deployment: The simulated deployment.
        env: Virtual time.
        state: The planner's view of the cluster.
        nodes: Carry out steps.
        router: Router that uses the routes.
        timing: Durations of steps. The first plan is in force at once: a scenario begins with it.
        disturb: Called before and after changes that affect requests.
        store: Store of plans.
        records: All plans, as in reports.
        busy: Whether a rollout is under way.
        decisions: Number of the strategy's decisions.
        problem: Reason why there is no plan; empty: none.
    """

    deployment: Deployment
    env: Environment
    state: ClusterState
    nodes: Nodes
    router: Router
    timing: Timing
    disturb: Callable[[], None]
    store: PlanLog = field(default_factory=PlanLog)
    records: list[PlanRecord] = field(default_factory=list)
    busy: bool = False
    decisions: int = 0
    problem: str = ""
    _ids: Iterator[int] = field(default_factory=lambda: count(1))
    _revision: int = 0
    _serving: tuple[PlannedSegment, ...] = ()
    _draft: Draft | None = None

    # ---- strategies ----------------------------------------------------------------------------

    def new_id(self) -> str:
        """Return an unused segment id."""
        return f"s-{next(self._ids)}"

    async def think(self, strategy: str, work: Callable[[], T]) -> T:
        """Run a strategy's computation, and pass the time that deciding takes."""
        await _happens(self.env.timeout(self._now_timing.decide_s))
        return work()

    async def together(self, works: Iterable[Coroutine[Any, Any, T]]) -> Sequence[T]:
        """Run coroutines concurrently; return their results, in order."""
        processes = [self.env.process(process_of(work)) for work in works]
        done = await _happens(self.env.all_of(processes))
        return [done[each] for each in processes]

    # ---- routes --------------------------------------------------------------------------------

    @property
    def shares(self) -> Mapping[str, float]:
        """Current share of its model's load of each serving segment, by segment id."""
        return {segment.spec.segment_id: segment.share for segment in self._serving}

    async def serve(self, plan_version: int, segments: Iterable[PlannedSegment]) -> int:
        """Route requests to these segments with these shares, and to no others."""
        self._serving = tuple(segments)
        self._revision += 1
        found = routes(self.deployment, self._serving, self.state.fleet.routed)
        table = RoutingTable(self._revision, plan_version, found)
        self.router.swap(to_table(routing_to(table)))  # as over the wire
        return self._revision

    async def acknowledged(self, revision: int, timeout_s: float) -> bool:
        """Wait until the router uses a table."""
        await _happens(self.env.timeout(self._now_timing.acknowledge_s))
        return True

    # ---- rollouts ------------------------------------------------------------------------------

    async def perform(self, change: NodeChange) -> None:
        """Run a node's part of a stage."""
        timing = self._now_timing
        for group in change.groups:
            await self.together(self._step(action, grace_s, timing) for action, grace_s in group)
            self.nodes.report(change.node, self.state.fleet)
            self.state.changed.notify()

    async def _step(self, action: Action, grace_s: float, timing: Timing) -> None:
        await _ends(self.nodes.perform(action, grace_s, timing))

    def announce(self, plan: Plan) -> None:
        """Record a plan, or its new state.

        Raises:
            RuntimeError: Its rollout failed, which simulated nodes never cause.
        """
        now_s = float(self.env.now)
        match plan.state:
            case PlanState.ROLLING if self._draft is not None:
                self.disturb()
                self.busy = True
                self.records.append(PlanRecord.of(plan, self._draft.decision, now_s))
            case PlanState.ACTIVE:
                self.records[-1] = replace(self.records[-1], active_s=now_s)
                self.busy = False
                self.disturb()
            case PlanState.FAILED:
                raise RuntimeError(f"plan {plan.version} failed: {plan.failure}")

    async def activate(self, version: int) -> None:
        """Make a plan the active one."""
        await self.store.set_state(version, PlanState.ACTIVE)

    @property
    def _now_timing(self) -> Timing:
        return self.timing if self.records and self.records[0].active_s is not None else _AT_ONCE

    # ---- log and metrics -----------------------------------------------------------------------

    @property
    def log(self) -> VirtualEnvironment:
        """The environment itself."""
        return self

    def info(self, event: str, **details: Any) -> None:
        """Log nothing: reports have all events."""

    def warning(self, event: str, **details: Any) -> None:
        """Record the reason why there is no plan."""
        self.problem = str(details.get("error", self.problem))

    def count_decision(self, draft: Draft) -> None:
        """Count a decision."""
        self.decisions += 1
        self._draft, self.problem = draft, ""

    def count_plan(self, kind: Kind) -> None:
        """Count nothing: plans are in the records."""

    def count_resumed(self) -> None:
        """Count nothing: no simulation begins with a plan."""

    def count_evaluation(self) -> None:
        """Count nothing: evaluations are plans."""

"""From a decision to what runs: written down, told of, carried out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from services.kit.telemetry import logs
from services.planner.adapters import prometheus
from services.planner.adapters.store import Store
from services.planner.control.accounting_writer import Books
from services.planner.control.cluster_state import World
from services.planner.control.planning import Draft
from services.planner.control.publisher import Announcer
from services.planner.control.rollout_executor import Executor, StepFailed, Way
from services.planner.core.online_search.counter_readings import Reading
from services.planner.core.placement.actions import Rollout, StopSegment
from services.planner.core.plan import Plan, PlanState
from services.planner.core.plan_builder import same, specs
from services.planner.core.routing_table import by_capacity
from services.planner.core.triggers import Kind, Observation

_log = logs.get("conductor")

_REPORT_S = 5.0


@dataclass(slots=True)
class Standing:
    """Where the planner stands; the reconciler and searches read it, and correct it.

    Attributes:
        wanted: What was known at the last decision, with what it wanted; None: none yet.
        decided_s: When that was, monotonic, s.
        active: The active plan.
        since: All counters when it became active, or later; None: that was before a restart.
        failed: The newest plan, where its rollout failed.
    """

    wanted: Observation | None = None
    decided_s: float = -math.inf
    active: Plan | None = None
    since: Reading | None = None
    failed: Plan | None = None


class Conductor:
    """Carries plans out, one at a time. Attributes: standing (where the planner stands)."""

    def __init__(
        self, world: World, store: Store, books: Books, announcer: Announcer, executor: Executor
    ) -> None:
        self.standing = Standing()
        self._world = world
        self._store = store
        self._books = books
        self._announcer = announcer
        self._executor = executor

    async def carry(
        self, kind: Kind, found: Draft, seen: Observation, *, told: bool = False
    ) -> bool:
        """Carry a decision out where it differs from the active plan; return whether it did.

        Args:
            kind: What caused it.
            found: The decision.
            seen: What was known.
            told: Write it down as a plan even where it changes nothing.

        Raises:
            StepFailed: The rollout failed; the plan is written as FAILED.
        """
        self.note(found, seen)
        now = self.standing
        if not told and now.failed is None and now.active and same(found.plan, now.active):
            _log.info("plan stays", cause=found.plan.reason, version=now.active.version)
            return False
        if not found.plan.segments and found.decision.running:
            _log.warning("what runs stays", cause=found.plan.reason, degraded=found.plan.degraded)
            now.wanted = seen
            return False
        prometheus.PLANS.labels(kind.value).inc()
        plan = await self.publish(found, seen)
        await self.roll(plan, found)
        return True

    async def publish(self, found: Draft, seen: Observation, *, pin: bool = False) -> Plan:
        """Write a plan down, then tell of it; return it with its version.

        Args:
            found: The plan.
            seen: What was known when it was made.
            pin: Hold it from now on.
        """
        plan = await self._store.add(found.plan, seen.gpus, found.snapshot, pin=pin)
        self.note(found, seen)
        self._announcer.announce(plan)
        _log.info(
            "plan",
            version=plan.version,
            cause=plan.reason,
            steps=plan.steps,
            degraded=plan.degraded,
            least_capacity=dict(found.decision.rollout.least_capacity),
        )
        return plan

    def note(self, found: Draft, seen: Observation) -> None:
        """Remember what was known and what is wanted, to compare later observations with."""
        self.standing.decided_s = self._world.clock.monotonic()
        self.standing.wanted = replace(seen, segments=specs(found.plan), late=(), inaccurate=())

    async def roll(self, plan: Plan, found: Draft) -> None:
        """Carry a plan out that is written down; afterwards it is the active one.

        Raises:
            StepFailed: It failed, and is written as FAILED; what may serve of it does.
        """
        way = Way.of(found.decision)
        plan = replace(plan, state=PlanState.ROLLING)
        await self._store.set_state(plan.version, plan.state)
        self._announcer.announce(plan)
        try:
            await self._executor.execute(plan, found.decision.rollout, way)
        except StepFailed as error:
            await self.fail(plan, str(error))
            # Of all that may run, the announcer routes to what agents report to serve.
            await self._announcer.serve(plan.version, by_capacity(way.segments.values()))
            raise
        await self._reported(found.decision.rollout)
        await self._books.activate(plan.version)
        self._world.level.forget()
        self.standing.failed = None
        self.standing.active = await self._store.plan(plan.version)
        self.standing.since = self._world.reading()
        self._announcer.announce(self.standing.active)
        _log.info("plan is active", version=plan.version)

    async def fail(self, plan: Plan, failure: str) -> None:
        """Write a plan down as FAILED, and tell."""
        await self._store.set_state(plan.version, PlanState.FAILED, failure)
        self.standing.failed = replace(plan, state=PlanState.FAILED, failure=failure)
        self._announcer.announce(self.standing.failed)

    async def _reported(self, rollout: Rollout) -> None:
        """Wait for reports without what was stopped: results may outrun reports.

        A report of before would else look as if something ran that should not.
        """
        stopped = {
            action.segment_id
            for stage in rollout.stages
            for step in stage.actions
            for action in step
            if isinstance(action, StopSegment)
        }
        fleet = self._world.fleet
        await self._world.changed.until(lambda: stopped.isdisjoint(fleet.segments()), _REPORT_S)

"""Lifecycle of a plan, from draft to active: stored, published, carried out."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.planner.v1.records import Plan, PlanState
from services.kit.errors import Unavailable
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.environment import Draft, Environment
from services.planner.core.cycle.rollout_executor import (
    RolloutExecutor,
    StepFailed,
    may_serve,
    stops,
)
from services.planner.core.maintenance import Freeze, Held, hold
from services.planner.core.model import Segment
from services.planner.core.online_search.measurement import Measurement, Reading, measured
from services.planner.core.placement.actions import Rollout
from services.planner.core.plan import Pin
from services.planner.core.plan_builder import specs, unchanged
from services.planner.core.routing_table import by_capacity
from services.planner.core.triggers import Kind, Observation

_REPORT_S = 5.0


@dataclass(slots=True)
class Standing:
    """State of the planner between decisions.

    Attributes:
        wanted: Observation at the last decision, with its target; None: none yet.
        decided_s: Time of the last decision, monotonic, s.
        active: The active plan.
        since: Counters when it became active, or later; None: that was before a restart.
        failed: The newest plan, if its rollout failed.
        missed: Promises that the last decision cannot keep, whether or not it changed what runs;
            None: no decision since the start.
        undecided: Reason why the last attempt decided nothing; "": it did.
        unfinished: The newest plan and its inputs, if a restart cut its rollout, or a database that
            could not be written: nothing else would finish it, for what runs may be as planned.
        pinned: The plan that an operator pinned; None: none.
        pinned_at: Time of that order, UTC; None: unknown.
        freeze: The last freeze ordered, which may have ended; None: none.
        changes_s: Times when plans changed what runs, monotonic, s; those of the last hours.
    """

    wanted: Observation | None = None
    decided_s: float = -math.inf
    active: Plan | None = None
    since: Reading | None = None
    failed: Plan | None = None
    missed: tuple[Condition, ...] | None = None
    undecided: str = ""
    unfinished: tuple[Plan, Observation] | None = None
    pinned: Pin | None = None
    pinned_at: datetime | None = None
    freeze: Freeze | None = None
    changes_s: deque[float] = field(default_factory=lambda: deque(maxlen=1000))

    def held(self, state: ClusterState) -> Held:
        """Return the holds on the planner now."""
        now = hold(self.freeze, state.settings.maintenance, state.clock.now())
        return Held(self.pinned, self.pinned_at, self.freeze, now)

    def conditions(self, state: ClusterState) -> tuple[Condition, ...]:
        """Return promises that are missed, and the reasons why there is no newer plan."""
        found = self.missed
        if found is None:
            found = () if self.active is None else self.active.conditions
        if self.failed is not None:
            why = f"plan {self.failed.version} failed: {self.failed.failure}"
            found = (*found, Condition(ConditionKind.ROLLOUT_FAILED, "plan", why))
        if self.undecided:
            found = (*found, Condition(ConditionKind.UNDECIDED, "plan", self.undecided))
        served = {each.spec.model for each in self.active.segments} if self.active else set()
        if self.pinned is None:  # requests of a parked model end every other hold on it
            served |= {model for model, rps in state.demand_rps().items() if not rps}
        left_out = [each.name for each in state.deployed if each.name not in served]
        return (*found, *self.held(state).conditions(left_out if self.active else ()))

    def ran(self, state: ClusterState, running: Iterable[Segment]) -> Measurement | None:
        """Return the work of the active plan since its last measurement; None: it does not run.

        Args:
            state: State of the cluster.
            running: Running segments.
        """
        running = tuple(running)
        if self.active is None or self.since is None:
            return None
        planned = {segment.spec.segment_id for segment in self.active.segments}
        if {segment.segment_id for segment in running} != planned:
            return None
        before, self.since = self.since, state.reading()
        return measured(before, self.since, running)


class PlanLifecycle:
    """Carries plans out, one at a time.

    Args:
        state: State of the cluster.
        environment: Stores, publishes and carries out plans.

    Attributes:
        standing: The planner's current standing.
    """

    def __init__(self, state: ClusterState, environment: Environment) -> None:
        self.standing = Standing()
        self._state = state
        self._environment = environment
        self._executor = RolloutExecutor(state, environment)

    async def carry_out(self, kind: Kind, draft: Draft, *, always: bool = False) -> bool:
        """Carry a decision out if it differs from the active plan; return whether it does.

        Args:
            kind: Kind of trigger.
            draft: The decision.
            always: Whether to store a plan that changes nothing.

        Raises:
            StepFailed: The rollout failed; the plan is stored as FAILED.
        """
        self.note(draft)
        log, now, plan = self._environment.log, self.standing, draft.plan
        if not always and now.failed is None and now.active and unchanged(plan, now.active):
            log.info("plan stays", cause=plan.reason, version=now.active.version)
            return False
        demanded = bool(draft.decision.configuration.limited)  # a power budget is an order
        if not plan.segments and draft.snapshot.models and draft.decision.running and not demanded:
            log.warning("what runs stays", cause=plan.reason, degraded=plan.degraded)
            now.wanted = draft.seen
            return False
        self._environment.count_plan(kind)
        if plan.steps:
            now.changes_s.append(self._state.clock.monotonic())
        await self.roll_out(await self.publish(draft), draft)
        return True

    async def publish(self, draft: Draft, *, pin: str | None = None) -> Plan:
        """Store a plan, then announce it; return it with its version.

        Args:
            draft: The plan.
            pin: The operator's pin on it; None: it is not pinned.
        """
        store = self._environment.store
        seen = draft.seen
        plan = await store.add(draft.plan, seen.gpus, draft.snapshot, fixed=seen.fixed, pin=pin)
        self.note(draft)
        self._environment.announce(plan)
        self._environment.log.info(
            "plan",
            version=plan.version,
            cause=plan.reason,
            steps=plan.steps,
            degraded=plan.degraded,
            least_capacity=dict(draft.decision.rollout.least_capacity),
        )
        return plan

    def note(self, draft: Draft) -> None:
        """Record the observation, the target, and the promises that it cannot keep."""
        self.standing.decided_s = self._state.clock.monotonic()
        self.standing.missed, self.standing.undecided = draft.plan.conditions, ""
        self.standing.wanted = draft.seen.wanting(specs(draft.plan))

    async def roll_out(self, plan: Plan, draft: Draft) -> None:
        """Carry out a stored plan and make it the active one.

        Raises:
            StepFailed: It failed, and is stored as FAILED; its segments that run may serve.
            Unavailable: The database is away: the rollout is unfinished.
        """
        try:
            await self._roll_out(plan, draft)
        except Unavailable:
            self.standing.unfinished = plan, self.standing.wanted or draft.seen
            raise

    async def _roll_out(self, plan: Plan, draft: Draft) -> None:
        environment = self._environment
        plan = replace(plan, state=PlanState.ROLLING)
        await environment.store.set_state(plan.version, plan.state)
        environment.announce(plan)
        try:
            await self._executor.execute(plan, draft.decision)
        except StepFailed as error:
            await self.fail(plan, str(error))
            # Routes name only segments that agents report as serving.
            served = by_capacity(may_serve(draft.decision).values())
            await environment.serve(plan.version, served)
            raise
        await self._reported(draft.decision.rollout)
        await environment.activate(plan.version)
        self._state.level.forget(self._state.clock.monotonic() if plan.steps else None)
        self.standing.failed = None
        self.standing.active = await environment.store.plan(plan.version)
        self.standing.since = self._state.reading()
        environment.announce(self.standing.active)
        environment.log.info("plan is active", version=plan.version)

    async def fail(self, plan: Plan, failure: str) -> None:
        """Store a plan as FAILED, and announce it."""
        await self._environment.store.set_state(plan.version, PlanState.FAILED, failure)
        self.standing.failed = replace(plan, state=PlanState.FAILED, failure=failure)
        self._environment.announce(self.standing.failed)

    async def _reported(self, rollout: Rollout) -> None:
        """Wait for reports without the stopped segments: results may arrive before reports.

        With an earlier report, segments would seem to run that should not.
        """
        stopped = frozenset[str]().union(*map(stops, rollout.stages))
        fleet = self._state.fleet
        await self._state.changed.until(lambda: stopped.isdisjoint(fleet.segments()), _REPORT_S)

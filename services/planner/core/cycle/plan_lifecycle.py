"""From a draft to an active plan: stored, published, carried out."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.planner.v1.records import Plan, PlanState
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.environment import Draft, Environment
from services.planner.core.cycle.rollout_executor import (
    RolloutExecutor,
    StepFailed,
    may_serve,
    stops,
)
from services.planner.core.maintenance import Freeze
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
    """Where the planner stands.

    Attributes:
        wanted: What was known at the last decision, with what it wanted; None: none yet.
        decided_s: When that was, monotonic, s.
        active: The active plan.
        since: All counters when it became active, or later; None: that was before a restart.
        failed: The newest plan, where its rollout failed.
        undecided: Why nothing could be decided, of the last attempt; "": something was.
        unfinished: The newest plan, where a restart cut its rollout, and what it was made for.
        pinned: The plan that an operator holds; None: none.
        freeze: The last freeze that operators ordered, which may be over; None: none.
        changes_s: When plans changed what runs, monotonic, s; those of the last hours.
    """

    wanted: Observation | None = None
    decided_s: float = -math.inf
    active: Plan | None = None
    since: Reading | None = None
    failed: Plan | None = None
    undecided: str = ""
    unfinished: tuple[Plan, Observation] | None = None
    pinned: Pin | None = None
    freeze: Freeze | None = None
    changes_s: deque[float] = field(default_factory=lambda: deque(maxlen=1000))

    def conditions(self) -> tuple[Condition, ...]:
        """Return what the active plan cannot keep, and why there is no newer one."""
        found = () if self.active is None else self.active.conditions
        if self.failed is not None:
            why = f"plan {self.failed.version} failed: {self.failed.failure}"
            found = (*found, Condition(ConditionKind.ROLLOUT_FAILED, "plan", why))
        if self.undecided:
            found = (*found, Condition(ConditionKind.UNDECIDED, "plan", self.undecided))
        return found

    def ran(self, state: ClusterState, running: Iterable[Segment]) -> Measurement | None:
        """Return what the active plan did since it was last measured; None: it is not what runs.

        Args:
            state: The cluster's.
            running: What runs.
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
        state: The cluster's.
        environment: Stores, publishes and carries out.

    Attributes:
        standing: Where the planner stands.
    """

    def __init__(self, state: ClusterState, environment: Environment) -> None:
        self.standing = Standing()
        self._state = state
        self._environment = environment
        self._executor = RolloutExecutor(state, environment)

    async def carry_out(self, kind: Kind, draft: Draft, *, always: bool = False) -> bool:
        """Carry a decision out where it differs from the active plan; return whether it did.

        Args:
            kind: What caused it.
            draft: The decision.
            always: Store it as a plan even where it changes nothing.

        Raises:
            StepFailed: The rollout failed; the plan is stored as FAILED.
        """
        self.note(draft)
        log, now, plan = self._environment.log, self.standing, draft.plan
        if not always and now.failed is None and now.active and unchanged(plan, now.active):
            log.info("plan stays", cause=plan.reason, version=now.active.version)
            return False
        if not plan.segments and draft.decision.running:
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
            pin: Who holds it from now on; None: it is not held.
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
        """Remember what was known and what is wanted, to compare later observations with."""
        self.standing.decided_s = self._state.clock.monotonic()
        self.standing.undecided = ""
        self.standing.wanted = draft.seen.wanting(specs(draft.plan))

    async def roll_out(self, plan: Plan, draft: Draft) -> None:
        """Carry a stored plan out; afterwards it is the active one.

        Raises:
            StepFailed: It failed, and is stored as FAILED; what may serve of it does.
        """
        environment = self._environment
        plan = replace(plan, state=PlanState.ROLLING)
        await environment.store.set_state(plan.version, plan.state)
        environment.announce(plan)
        try:
            await self._executor.execute(plan, draft.decision)
        except StepFailed as error:
            await self.fail(plan, str(error))
            # Of all that may run, routes name only what agents report to serve.
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
        """Wait for reports without what was stopped: results may outrun reports.

        An earlier report would look as if something ran that should not.
        """
        stopped = frozenset[str]().union(*map(stops, rollout.stages))
        fleet = self._state.fleet
        await self._state.changed.until(lambda: stopped.isdisjoint(fleet.segments()), _REPORT_S)

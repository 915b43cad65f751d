"""The planner's loop: wait for a cause, decide, write it down, carry it out.

Desired state is data: after a failure or a restart the loop looks at what runs, decides anew and
rolls out the difference; it never replays old steps.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.kit import logs
from services.kit.backoff import Backoff
from services.kit.deployment import Planner as Settings
from services.kit.errors import Unavailable
from services.planner import metrics
from services.planner.announcer import Announcer
from services.planner.books import Books
from services.planner.decide import Decision, Snapshot, decide
from services.planner.domain import Model
from services.planner.executor import Executor, StepFailed, Way
from services.planner.plan import Inputs, Plan, PlannedSegment, PlanState, Prediction
from services.planner.routing import by_capacity
from services.planner.store import Store
from services.planner.triggers import Kind, Observation, Trigger, cause, wait_s
from services.planner.world import World

_log = logs.get("reconciler")

_SAME_SHARE = 0.01
_LEAST_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What the reconciler works with. Attributes: one collaborator each."""

    world: World
    store: Store
    books: Books
    announcer: Announcer
    executor: Executor


class Reconciler:
    """Makes plans and makes them true, one at a time."""

    def __init__(self, settings: Settings, models: Sequence[Model], parts: Parts) -> None:
        self._settings = settings
        self._models = tuple(models)
        self._world = parts.world
        self._store = parts.store
        self._books = parts.books
        self._announcer = parts.announcer
        self._executor = parts.executor
        self._backoff = Backoff(initial_s=0.5, maximum_s=30.0)
        self._wanted: Observation | None = None  # at the last decision, with what it wanted
        self._decided_s = -math.inf
        self._failed: Plan | None = None  # the newest plan, where its rollout failed
        self._active: Plan | None = None

    async def restore(self) -> None:
        """Take up the state of before a restart, so that subscribers are served at once."""
        self._active = await self._store.active()
        await self._books.restore(self._active)
        found = await self._store.newest_first(1)
        if not found:
            return
        newest = found[0]
        if newest.state in (PlanState.PROPOSED, PlanState.ROLLING):
            newest = await self._fail(newest, "the planner stopped during its rollout")
        if newest.state is PlanState.FAILED:
            self._failed = newest
        plans = [plan for plan in (newest, self._active) if plan is not None]
        await self._announcer.restore(plans)
        nodes = frozenset(segment.node for plan in plans for segment in plan.segments)
        self._world.fleet.expect(nodes, self._world.clock.monotonic())
        if self._active is not None:
            self._wanted = _remembered(self._active, await self._store.gpus())

    async def run(self) -> None:
        """Reconcile for ever."""
        while True:
            trigger, seen = await self._next()
            try:
                await self._replan(trigger, seen)
            except (Unavailable, StepFailed) as error:
                _log.warning("no plan came true", cause=trigger.reason, error=str(error))
                await self._world.clock.sleep(self._backoff.next_s())
            else:
                self._backoff.reset()

    async def _next(self) -> tuple[Trigger, Observation]:
        """Wait until there is a cause to plan, and it may be acted upon."""
        world = self._world
        while True:
            count, now_s = world.changed.count, world.clock.monotonic()
            seen = world.observe()
            trigger = self._cause(seen) if seen is not None else None
            if seen is None or trigger is None:
                delay_s = world.fleet.unsettled_s(now_s) or math.inf
            else:
                delay_s = wait_s(trigger.kind, now_s - self._decided_s, self._settings.triggers)
                if delay_s <= 0:
                    return trigger, seen
            await world.changed.after(count, delay_s)

    def _cause(self, seen: Observation) -> Trigger | None:
        if self._failed is not None:
            text = f"retry: plan {self._failed.version} failed: {self._failed.failure}"
            return Trigger(Kind.RETRY, text)
        return cause(self._wanted, seen, self._settings.triggers)

    async def _replan(self, trigger: Trigger, seen: Observation) -> None:
        """Decide, and carry the decision out where it differs from the active plan.

        Raises:
            Unavailable: The strategy crashed.
            StepFailed: The rollout did; the plan is written as FAILED.
        """
        snapshot, started_s = self._snapshot(seen), self._world.clock.monotonic()
        decision = await self._decide(snapshot)
        self._decided_s = self._world.clock.monotonic()
        solve_s = self._decided_s - started_s
        metrics.SOLVE_SECONDS.labels(snapshot.strategy).observe(solve_s)
        plan = self._draft(trigger, seen, decision, solve_s)
        self._wanted = replace(seen, segments=frozenset(each.spec for each in plan.segments))
        if self._failed is None and self._active is not None and _same(plan, self._active):
            _log.info("plan stays", cause=trigger.reason, version=self._active.version)
            return
        plan = await self._store.add(plan, seen.gpus)
        metrics.PLANS.labels(trigger.kind.value).inc()
        self._announcer.announce(plan)
        _log.info(
            "plan",
            version=plan.version,
            cause=plan.reason,
            steps=plan.steps,
            least_capacity=dict(decision.rollout.least_capacity),
        )
        await self._roll(plan, decision, self._way(snapshot, decision))

    async def _roll(self, plan: Plan, decision: Decision, way: Way) -> None:
        plan = replace(plan, state=PlanState.ROLLING)
        await self._store.set_state(plan.version, plan.state)
        self._announcer.announce(plan)
        try:
            await self._executor.execute(plan, decision.rollout, way)
        except StepFailed as error:
            self._failed = await self._fail(plan, str(error))
            self._announcer.announce(self._failed)
            # Of all that may run, the announcer routes to what agents report to serve.
            await self._announcer.serve(plan.version, by_capacity(way.segments.values()))
            raise
        await self._books.activate(plan.version)
        self._failed, self._active = None, await self._store.plan(plan.version)
        self._announcer.announce(self._active)
        _log.info("plan is active", version=plan.version)

    async def _fail(self, plan: Plan, failure: str) -> Plan:
        await self._store.set_state(plan.version, PlanState.FAILED, failure)
        return replace(plan, state=PlanState.FAILED, failure=failure)

    async def _decide(self, snapshot: Snapshot) -> Decision:
        def new_id() -> str:
            return f"s-{uuid.uuid4().hex[:12]}"

        try:
            return await asyncio.to_thread(decide, snapshot, self._settings, new_id)
        except Exception as error:
            # The border to strategies: one that crashes must not take the routes down with it.
            _log.exception("strategy crashed", strategy=snapshot.strategy)
            raise Unavailable(f"strategy {snapshot.strategy} crashed: {error}") from error

    def _snapshot(self, seen: Observation) -> Snapshot:
        world = self._world
        now_s = world.clock.monotonic()
        return Snapshot(
            gpus=world.fleet.gpus(seen.intensity_gco2e_per_kwh, now_s),
            models=tuple(
                replace(model, demand_rps=seen.demand_rps[model.name]) for model in self._models
            ),
            running=tuple(run for node in world.fleet.nodes(now_s) for run in node.segments),
            shares=self._announcer.shares,
            objective=world.objective,
            strategy=seen.strategy,
        )

    def _draft(
        self, trigger: Trigger, seen: Observation, decision: Decision, solve_s: float
    ) -> Plan:
        score = decision.score
        return Plan(
            version=0,
            created_at=self._world.clock.now(),
            state=PlanState.PROPOSED,
            strategy=seen.strategy,
            reason=trigger.reason,
            inputs=Inputs(
                intensity_gco2e_per_kwh=seen.intensity_gco2e_per_kwh,
                demand_rps=seen.demand_rps,
                gpus=Counter(seen.gpus.values()),
                carbon_weight=seen.carbon_weight,
            ),
            segments=tuple(PlannedSegment.of(segment) for segment in decision.target),
            prediction=Prediction(
                objective=score.objective,
                accuracy=score.accuracy,
                latency_s=score.latency_s,
                unserved_rps=score.unserved_rps,
                power_w=score.power_w,
                carbon_gco2e_per_h=score.carbon_gco2e_per_h,
                gpus=score.powered_gpus,
                gap=decision.configuration.gap,
                solve_s=solve_s,
            ),
            steps=decision.rollout.actions,
            slice_changes=decision.rollout.slice_changes,
        )

    def _way(self, snapshot: Snapshot, decision: Decision) -> Way:
        slo_s = {model.name: model.slo_latency_s for model in self._models}
        return Way(
            nodes={gpu.uuid: gpu.node for gpu in snapshot.gpus},
            segments={
                segment.segment_id: PlannedSegment.of(segment)
                for segment in (*decision.running, *decision.target)
            },
            grace_s={
                segment.segment_id: max(_LEAST_GRACE_S, 2 * slo_s.get(segment.kind.model, 0.0))
                for segment in decision.running
            },
        )


def _same(plan: Plan, active: Plan) -> bool:
    """Tell whether carrying `plan` out would change nothing worth a plan."""
    before = {segment.spec: segment.share for segment in active.segments}
    after = {segment.spec: segment.share for segment in plan.segments}
    return (
        plan.steps == 0
        and before.keys() == after.keys()
        and all(abs(after[spec] - before[spec]) <= _SAME_SHARE for spec in after)
    )


def _remembered(active: Plan, gpus: dict[tuple[str, str], str]) -> Observation:
    """Return what was known, and wanted, when the active plan was made."""
    return Observation(
        intensity_gco2e_per_kwh=active.inputs.intensity_gco2e_per_kwh,
        demand_rps=active.inputs.demand_rps,
        gpus=gpus,
        segments=frozenset(segment.spec for segment in active.segments),
        strategy=active.strategy,
        carbon_weight=active.inputs.carbon_weight,
    )

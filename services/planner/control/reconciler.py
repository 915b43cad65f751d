"""The planner's loop: wait for a cause or an order, decide, write it down, carry it out.

Desired state is data: after a failure or a restart the loop looks at what runs and rolls out the
difference to the plan; it never replays old steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from services.kit.backoff import Backoff
from services.kit.config import Planner as Settings
from services.kit.errors import FailedPrecondition, ServiceError, Unavailable
from services.kit.telemetry import logs
from services.planner.adapters import prometheus
from services.planner.adapters.store import Store
from services.planner.control.accounting_writer import Books
from services.planner.control.cluster_state import World
from services.planner.control.online_search_loop import Learner, cut
from services.planner.control.operator_queue import Orders, Work
from services.planner.control.pin import Pin
from services.planner.control.plan_lifecycle import Conductor
from services.planner.control.planning import Draft, Planning, Undecided
from services.planner.control.publisher import Announcer
from services.planner.control.rollout_executor import StepFailed
from services.planner.core import feasibility
from services.planner.core.plan import Plan, PlanState
from services.planner.core.plan_builder import remembered
from services.planner.core.triggers import Kind, Observation, Trigger, cause, disturbance, wait_s
from services.planner.core.what_if import Changes, Proposal

_log = logs.get("reconciler")

_UNFINISHED = (PlanState.PROPOSED, PlanState.ROLLING)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the reconciler works with. Attributes: one collaborator each."""

    world: World
    planning: Planning
    store: Store
    books: Books
    announcer: Announcer
    conductor: Conductor
    learner: Learner


class Reconciler:
    """Makes plans and makes them true, one at a time."""

    def __init__(self, settings: Settings, parts: Parts) -> None:
        self._settings = settings
        self._world = parts.world
        self._planning = parts.planning
        self._store = parts.store
        self._books = parts.books
        self._announcer = parts.announcer
        self._conductor = parts.conductor
        self._learner = parts.learner
        self._standing = parts.conductor.standing
        self._orders = Orders(parts.world.changed)
        self._backoff = Backoff(initial_s=0.5, maximum_s=30.0)
        self._unfinished: Plan | None = None  # the newest plan, where a restart cut its rollout
        self._pin = Pin(parts.store)

    # ---- what operators order ------------------------------------------------------------------

    @property
    def pinned(self) -> int | None:
        """Version of the plan that is held, if one is."""
        return self._pin.version

    async def propose(self, changes: Changes) -> Proposal:
        """Return what would be decided under other circumstances; nothing is stored or touched.

        Raises:
            InvalidArgument: A change is out of range, or names what does not exist.
            FailedPrecondition: Nothing can be decided yet.
        """
        return await self._planning.proposed(changes)

    async def apply(self, plan: Plan) -> Plan:
        """Carry out the plan of a dry run now; return it, stored and announced.

        Raises:
            InvalidArgument: The plan's numbers cannot be.
            FailedPrecondition: A plan is pinned, or the fleet lacks what this one needs.
        """
        feasibility.check(plan.segments)
        return await self._orders.give(partial(self._apply, plan))

    async def rollback(self, version: int) -> Plan:
        """Carry an earlier plan out again as a new version, and hold it.

        Raises:
            NotFound: There is no such plan.
            FailedPrecondition: The fleet lacks what it needs; the message says what.
        """
        plan = await self._store.plan(version)
        begin = partial(self._begin, f"rollback to {version}", plan, pin=True)
        return await self._orders.give(begin)

    async def pin(self, version: int | None = None) -> int:
        """Hold the active plan until `unpin`, over restarts too; return its version.

        Args:
            version: Must be the active plan's; None: whichever is active.

        Raises:
            NotFound: There is no such plan, or none is active.
            FailedPrecondition: It is not the active one.
        """
        plan = await self._store.plan(version or 0)
        return await self._orders.give(partial(self._hold, plan.version if version else None))

    async def unpin(self) -> None:
        """Plan by itself again."""
        await self._orders.give(self._release)

    # ---- the loop ------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Take up the state of before a restart, so that subscribers are served at once."""
        standing = self._standing
        standing.active = await self._store.active()
        await self._pin.restore()
        await self._books.restore(standing.active)
        found = await self._store.newest_first(1)
        if not found:
            return
        newest = found[0]
        if newest.state in _UNFINISHED:
            self._unfinished = newest
        elif newest.state is PlanState.FAILED:
            standing.failed = newest
        plans = [plan for plan in (newest, standing.active) if plan is not None]
        await self._announcer.restore(plans)
        nodes = frozenset(segment.node for plan in plans for segment in plan.segments)
        self._world.fleet.expect(nodes, self._world.clock.monotonic())
        if standing.active is not None:
            standing.wanted = remembered(standing.active, await self._store.gpus())

    async def run(self) -> None:
        """Reconcile for ever."""
        try:
            while True:
                work = await self._next()
                try:
                    await work()
                except (Unavailable, StepFailed, Undecided) as error:
                    _log.warning("no plan came true", error=str(error))
                    delay_s = self._backoff.next_s()
                    await self._world.changed.until(lambda: bool(self._orders), delay_s)
                else:
                    self._backoff.reset()
        finally:
            self._orders.close()

    async def _next(self) -> Work:
        """Wait for an order, or for a cause to plan that may be acted upon."""
        world = self._world
        while True:
            count = world.changed.count
            order = self._orders.take()
            if order is not None:
                return order.carry_out
            seen = world.observe()
            if seen is not None and self._unfinished is not None:
                return partial(self._resume, self._unfinished, seen)
            trigger = self._cause(seen) if seen is not None else None
            if seen is None or trigger is None:
                delay_s = world.unsettled_s()
            else:
                delay_s = self._wait_s(trigger)
                if delay_s <= 0:
                    return partial(self._replan, trigger, seen)
            await world.changed.after(count, delay_s)

    def _cause(self, seen: Observation) -> Trigger | None:
        now = self._standing
        if now.failed is not None:
            text = f"retry: plan {now.failed.version} failed: {now.failed.failure}"
            return Trigger(Kind.RETRY, text)
        if self._pin.version is not None:
            return disturbance(now.wanted, seen, self._settings.triggers)
        trigger = cause(now.wanted, seen, self._settings.triggers)
        if trigger is None and now.active is not None and cut(now.active):
            text = f"retry: the search that plan {now.active.version} is part of was cut"
            return Trigger(Kind.RETRY, text)
        return trigger

    def _wait_s(self, trigger: Trigger) -> float:
        since_s = self._world.clock.monotonic() - self._standing.decided_s
        return wait_s(trigger.kind, since_s, self._settings.triggers)

    def _overtaken(self) -> bool:
        """Tell whether what is under way must make room: for an order, or for other news.

        Broken promises are no news to it.
        """
        if self._orders:
            return True
        seen = self._world.observe()
        if seen is None:
            return False
        promised = replace(seen, late=(), inaccurate=())
        trigger = cause(self._standing.wanted, promised, self._settings.triggers)
        return trigger is not None and self._wait_s(trigger) <= 0

    # ---- plans ---------------------------------------------------------------------------------

    async def _resume(self, plan: Plan, seen: Observation) -> None:
        """Go on with a rollout that a restart cut: its plan is the target, what runs the start."""
        self._unfinished = None
        try:
            found = await self._planning.resumed(plan, seen)
        except ServiceError as error:
            failure = f"the planner stopped during its rollout, which cannot go on: {error.message}"
            await self._conductor.fail(plan, failure)
            return
        self._standing.wanted = remembered(plan, await self._store.gpus())
        _log.info("rollout goes on", version=plan.version, steps=found.plan.steps)
        prometheus.RESUMED.inc()
        await self._conductor.roll(plan, found)

    async def _replan(self, trigger: Trigger, seen: Observation) -> None:
        """Decide, and carry the decision out where it differs from the active plan.

        Raises:
            Undecided: There is no decision.
            StepFailed: The rollout failed; the plan is written as FAILED.
        """
        try:
            changed = await self._changed(trigger, seen)
        except ServiceError as error:
            self._standing.decided_s = self._world.clock.monotonic()
            raise Undecided(f"{trigger.reason}: {error.message}") from error
        finally:
            self._world.level.forget()
        self._world.decided(trigger, changed=changed)

    async def _changed(self, trigger: Trigger, seen: Observation) -> bool:
        """Decide and carry out; return whether something came of it."""
        if self._pin.version is None and self._learner.searches(seen.strategy):
            await self._learner.search(trigger, seen, self._overtaken)
            return False  # it keeps the accuracy floor where it can: to search again is no use
        trigger, seen = self._world.ask_more(trigger, seen)
        found = await self._decided(trigger, seen)
        return await self._conductor.carry(trigger.kind, found, seen)

    async def _decided(self, trigger: Trigger, seen: Observation) -> Draft:
        if self._pin.version is None:
            return await self._planning.decided(trigger.reason, seen)
        pinned = await self._store.plan(self._pin.version)
        return await self._planning.held(pinned, trigger.reason, seen)

    async def _apply(self, plan: Plan) -> tuple[Plan, Work]:
        """Begin a dry run's plan, unless another one is held."""
        if self._pin.version is not None:
            raise FailedPrecondition(
                f"plan {self._pin.version} is pinned; unpin first", reason="PINNED"
            )
        return await self._begin(f"apply: {plan.reason}", plan)

    async def _begin(self, reason: str, plan: Plan, *, pin: bool = False) -> tuple[Plan, Work]:
        """Store and announce an earlier plan, or a dry run's, as the newest."""
        seen = self._planning.observe()
        found = await self._planning.again(reason, plan, seen)
        self._unfinished = None
        stored = await self._conductor.publish(found, seen, pin=pin)
        prometheus.PLANS.labels("order").inc()
        if pin:
            self._pin.version = stored.version
        return stored, partial(self._conductor.roll, stored, found)

    async def _hold(self, version: int | None) -> tuple[int, None]:
        active = self._standing.active
        return await self._pin.hold(version, 0 if active is None else active.version), None

    async def _release(self) -> tuple[None, None]:
        await self._pin.release()
        return None, None

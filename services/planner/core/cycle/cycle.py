"""The decision cycle: wait for a trigger or an order, decide, store the plan, carry it out.

The planner runs it live, `cinquefoil simulate` in virtual time; only the environment differs.
Desired state is data: after a failure or a restart the cycle compares what runs with the plan and
rolls out the difference; it never replays old steps.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Protocol

from cinquefoil.planner.v1.records import Hold, Plan
from services.kit.backoff import Backoff
from services.kit.errors import ServiceError, Unavailable
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.environment import Draft, Environment
from services.planner.core.cycle.online_search_loop import OnlineSearchLoop, is_evaluation
from services.planner.core.cycle.plan_lifecycle import PlanLifecycle
from services.planner.core.cycle.planning import Planning, Undecided
from services.planner.core.cycle.rollout_executor import StepFailed
from services.planner.core.decide import Snapshot, frontier_of, pose, staying
from services.planner.core.fleet import Fleet
from services.planner.core.forecast.text_lengths import TextLength, eased
from services.planner.core.maintenance import holding
from services.planner.core.online_search.corrected_profile import learned, slower
from services.planner.core.triggers import (
    Kind,
    Observation,
    Trigger,
    cause,
    disturbance,
    loss,
    wait_s,
)

_SHORTEST_WAIT_S = 1e-6  # less is what rounding left of the times that a wait is made of
_LONG_LOOK_S = 0.002
_LOOK_EVERY = 29.0
"""Least time between two looks for a trigger, as a multiple of one look's duration."""

_ROUTERS_FIRST_S = 0.1

Work = Callable[[], Awaitable[None]]
"""Next piece of work of the cycle."""


class Orders(Protocol):
    """Operators' orders, which the cycle carries out one after another between its own plans."""

    def __len__(self) -> int:
        """Return the number of waiting orders."""
        ...

    def take(self) -> Work | None:
        """Return the work of the next order, including its reply; None: no order waits."""
        ...


class DecisionCycle:
    """Makes plans and carries them out, one at a time.

    Args:
        state: State of the cluster.
        environment: Environment that the cycle acts through.
        orders: Operators' orders; None: there are no operators.

    Attributes:
        planning: Makes plans.
        lifecycle: Carries them out.
        standing: The planner's current standing.
    """

    def __init__(
        self, state: ClusterState, environment: Environment, orders: Orders | None = None
    ) -> None:
        self.planning = Planning(state, environment)
        self.lifecycle = PlanLifecycle(state, environment)
        self.standing = self.lifecycle.standing
        self._triggers = state.settings.triggers
        self._state = state
        self._environment = environment
        self._orders = orders
        self._looked_at = -1  # number of the last change that led to no plan
        self._search = OnlineSearchLoop(state, environment, self.planning, self.lifecycle)
        self._backoff = Backoff(initial_s=0.5, maximum_s=30.0, rng=Random(state.settings.seed))  # noqa: S311  # jitter, no secret

    @property
    def idle(self) -> bool:
        """Every change was considered, and the cycle has nothing left to do or to wait for."""
        return self._looked_at == self._state.changed.count and not self._ordered()

    @property
    def held(self) -> Hold | None:
        """The hold that limits plans to lost capacity; None: there is none."""
        return self.standing.held(self._state).hold

    async def run(self) -> None:
        """Run the cycle until it is cancelled."""
        while True:
            work = await self._next()
            ends_wait = self._others_than(self._state.fleet)  # a node may join while it is tried
            try:
                await work()
            except (Unavailable, StepFailed, Undecided) as error:
                self._environment.log.warning("no plan came true", error=str(error))
                delay_s = self._backoff.next_s()
                await self._state.changed.until(ends_wait, delay_s)
            else:
                self._backoff.reset()

    def _ordered(self) -> bool:
        return bool(self._orders)

    def _others_than(self, fleet: Fleet) -> Callable[[], bool]:
        """Return whether an order waits, or nodes have joined or left since this call."""
        membership = fleet.membership
        return lambda: self._ordered() or fleet.membership != membership

    # ---- causes --------------------------------------------------------------------------------

    async def _next(self) -> Work:
        """Wait for an order, or for a trigger that may be acted upon."""
        state = self._state
        while True:
            count, began_s = state.changed.count, state.clock.monotonic()
            order = self._orders.take() if self._orders is not None else None
            if order is not None:
                return order
            now = state.snapshot(self._environment.shares)
            if now is not None and self.standing.unfinished is not None:
                return partial(self._resume, *self.standing.unfinished, now)
            trigger = self._cause(Observation.of(now)) if now is not None else None
            if now is None or trigger is None:
                if now is not None and state.usual(now) is not None:
                    return partial(self._reprice, now)
                delay_s = state.unsettled_s()
            else:
                delay_s = self._wait_s(trigger)
                if delay_s < _SHORTEST_WAIT_S:
                    return partial(self._replan, trigger, now)
            looked_s = state.clock.monotonic() - began_s
            if looked_s > _LONG_LOOK_S:  # changes of a large fleet are batched
                await state.changed.until(self._ordered, min(_LOOK_EVERY * looked_s, delay_s))
            self._looked_at = count if math.isinf(delay_s) else -1
            await state.changed.after(count, min(delay_s, self._held_s()))
            self._looked_at = -1
            if looked_s > _LONG_LOOK_S:  # routers get the change first
                await state.changed.until(self._ordered, _ROUTERS_FIRST_S)

    def _cause(self, seen: Observation) -> Trigger | None:
        now = self.standing
        if now.failed is not None:
            text = f"retry: plan {now.failed.version} failed: {now.failed.failure}"
            return Trigger(Kind.RETRY, text)
        if now.pinned is not None:
            return disturbance(now.wanted, seen, self._triggers)
        if self.held is not None:
            short = now.active is not None and bool(now.active.degraded)
            return loss(now.wanted, seen, self._triggers, short=short)
        trigger = cause(now.wanted, seen, self._triggers)
        if trigger is None and now.active is not None and is_evaluation(now.active):
            text = f"retry: the search that plan {now.active.version} is part of was cut"
            return Trigger(Kind.RETRY, text)
        return trigger

    def _wait_s(self, trigger: Trigger) -> float:
        now_s = self._state.clock.monotonic()
        ages_s = [now_s - at_s for at_s in self.standing.changes_s]
        return wait_s(trigger, now_s - self.standing.decided_s, self._triggers, ages_s)

    def _held_s(self) -> float:
        """Return the time until no hold applies, s; infinite: none does."""
        held = self.held
        if held is None:
            return math.inf
        return max((held.until - self._state.clock.now()).total_seconds(), 0.0)

    def _interrupted(self) -> bool:
        """Return whether a search must end: for an order, or for another trigger.

        Violated SLOs do not end a search.
        """
        if self._ordered() or self.held is not None:
            return True
        now = self._state.snapshot(self._environment.shares)
        if now is None:
            return False
        seen = Observation.of(now)
        trigger = cause(self.standing.wanted, seen.wanting(seen.segments), self._triggers)
        return trigger is not None and self._wait_s(trigger) <= 0

    # ---- plans ---------------------------------------------------------------------------------

    async def _resume(self, plan: Plan, wanted: Observation, now: Snapshot) -> None:
        """Resume a rollout cut by a restart: its plan is the target, what runs the start."""
        self.standing.unfinished = None
        try:
            draft = await self.planning.resumed(plan, now)
        except ServiceError as error:
            failure = f"its rollout was cut, and cannot go on: {error.message}"
            try:
                await self.lifecycle.fail(plan, failure)
            except Unavailable:
                self.standing.unfinished = plan, wanted
                raise
            return
        self.standing.wanted = wanted
        self._environment.log.info("rollout goes on", version=plan.version, steps=draft.plan.steps)
        self._environment.count_resumed()
        await self.lifecycle.roll_out(plan, draft)

    async def _replan(self, trigger: Trigger, now: Snapshot) -> None:
        """Decide, and carry the decision out if it differs from the active plan.

        Raises:
            Undecided: There is no decision.
            StepFailed: The rollout failed; the plan is stored as FAILED.
        """
        try:
            changed = await self._changed(trigger, now)
        except ServiceError as error:
            self.standing.decided_s = self._state.clock.monotonic()
            self.standing.undecided = error.message
            self._state.changed.notify()  # subscribers learn why
            raise Undecided(f"{trigger.reason}: {error.message}") from error
        finally:
            self._state.level.forget()
        self._state.decided(trigger, changed=changed)

    async def _changed(self, trigger: Trigger, now: Snapshot) -> bool:
        """Decide and carry out; return whether the plan changed."""
        held = self.held is not None
        now = await self._for_texts(now)
        if trigger.kind in (Kind.FIRST, Kind.OBJECTIVE):
            now = await self._priced(now)
        if self.standing.pinned is None and not held and self._search.applies(now.strategy):
            await self._search.run(trigger, now, self._interrupted)
            return False  # it keeps the accuracy floor if possible: searching again cannot help
        learned = await self._learned(now)
        if learned:
            now = self._state.snapshot(self._environment.shares) or now
        draft = await self._decided_with_more(trigger, now, learned)
        return await self.lifecycle.carry_out(trigger.kind, draft)

    async def _decided_with_more(
        self, trigger: Trigger, now: Snapshot, learned: Mapping[str, str]
    ) -> Draft:
        """Decide, raising the requirements while an SLO is violated and the plan stays the same.

        The running plan has just violated the SLO: publishing it again would only lose time.
        """
        level, clock = self._state.level, self._state.clock
        while True:
            raised, more = self._state.raise_requirements(trigger, now, learned)
            if self.held is not None:
                more = replace(more, objective=holding(more.objective))
            draft = await self._decided(raised, more)
            if not now.late or draft.plan.steps or self.standing.pinned is not None:
                return draft
            if not level.may_demand_more(clock.monotonic(), learned):
                return draft

    async def _reprice(self, now: Snapshot) -> None:
        """Find the prices of accuracy for other circumstances; another look follows."""
        await self._priced(now)
        self._state.changed.notify()

    async def _priced(self, now: Snapshot) -> Snapshot:
        """Find the frontier of plans that prices of accuracy rest on, where it is outdated.

        Returns:
            The snapshot, with the prices.
        """
        state = self._state
        usual = state.usual(now)
        if usual is None:
            return now
        seen = state.at_usual(now, usual)
        try:
            found = await self._environment.think(
                now.strategy, lambda: frontier_of(seen, usual.loads, state.settings)
            )
        except ServiceError as error:
            self._environment.log.warning("accuracy has no price", why=error.message)
            found = None
        state.accuracy.learn(usual, found)
        return state.snapshot(self._environment.shares) or now

    async def _for_texts(self, now: Snapshot) -> Snapshot:
        """Return the snapshot with eased objectives for models with too long texts."""
        state = self._state
        usual = state.lengths.usual
        if not usual:
            return now
        served = state.lengths.last_served(state.deployed)

        def servable(
            lengths: Mapping[str, TextLength], promised: Mapping[str, TextLength]
        ) -> set[str]:
            posed = pose(state.with_texts(now, lengths, promised), self._state.settings)
            return {kind.model for kind in posed.catalog}

        in_time, with_more_time = await self._environment.think(
            now.strategy, lambda: (servable(usual, {}), servable(eased(usual, served), served))
        )
        promised = {model: served[model] for model in sorted(served.keys() - in_time)}
        if not state.settle_texts(usual, promised, in_time, promised.keys() - with_more_time):
            return now
        for model in promised:
            self._environment.log.warning(
                "texts are too long to be in time", model=model, texts=str(usual[model])
            )
        return state.snapshot(self._environment.shares) or now

    async def _learned(self, now: Snapshot) -> Mapping[str, str]:
        """Correct the profiles of models with late requests by the measured times of batches.

        Earlier corrections are measured again with each decision.

        Returns:
            The models whose batches take longer than assumed, with the correction.
        """
        state = self._state
        measurement = self.standing.ran(state, staying(now))
        if measurement is None:
            return {}
        suspected = {violation.model for violation in now.late}
        beliefs = learned(state.beliefs, measurement, state.profiled, suspected)
        if beliefs is state.beliefs:
            return {}
        before = state.beliefs
        state.believe(beliefs)
        found = dict(slower(before, beliefs, measurement))
        for model in await self._unservable(found.keys()):
            # With the correction no kind keeps the latency rule; late segments beat none.
            state.believe(state.beliefs.without(model))
            text = found.pop(model)
            self._environment.log.warning("the SLO cannot be kept", model=model, measured=text)
        await self._environment.store.save_beliefs(state.beliefs)
        for model, text in found.items():
            self._environment.log.warning("the profile is too fast", model=model, measured=text)
        return found

    async def _unservable(self, models: Iterable[str]) -> list[str]:
        """Return those of `models` that no segment can serve in time with the current profiles."""
        now = self._state.snapshot(self._environment.shares)
        if now is None or not models:
            return []
        problem = await self._environment.think(
            now.strategy, lambda: pose(now, self._state.settings)
        )
        servable = {kind.model for kind in problem.catalog}
        return [model for model in models if model not in servable]

    async def _decided(self, trigger: Trigger, now: Snapshot) -> Draft:
        if self.standing.pinned is None:
            return await self.planning.decided(trigger.reason, now)
        pinned = await self._environment.store.plan(self.standing.pinned.version)
        return await self.planning.held(pinned, trigger.reason, now)

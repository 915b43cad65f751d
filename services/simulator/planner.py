"""The planner's loop in virtual time: wait for a cause, decide, carry it out.

What the world is, what causes a plan, what is decided and in which order it is carried out are the
planner's own (`services.planner`: world, triggers, decide, draft, rollout); what its reconciler
does with tasks, threads and a database is done here in virtual time, and kept in a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count

from simpy import Environment, Event

from services.kit.config import Deployment
from services.planner.control.cluster_state import World
from services.planner.core.decide import Decision, Snapshot, decide
from services.planner.core.model import Model
from services.planner.core.plan import Plan
from services.planner.core.plan_builder import Circumstances, draft, same, specs
from services.planner.core.triggers import Kind, Observation, Trigger, cause, wait_s
from services.simulator.rollout import Executor, Order
from services.simulator.scenario import Timing
from services.simulator.stats.run_record import PlanMade
from services.simulator.timeline import Waiting

_TICK_S = 1e-6
_AT_ONCE = Timing(**dict.fromkeys(Timing.model_fields, 0.0))


class PlannerClock:
    """Virtual time as the planner's world reads it."""

    def __init__(self, env: Environment, start: datetime) -> None:
        self._env = env
        self._start = start

    def now(self) -> datetime:
        """Return the time of day."""
        return self._start + timedelta(seconds=self._env.now)

    def monotonic(self) -> float:
        """Return virtual time, s."""
        return float(self._env.now)

    async def sleep(self, delay_s: float) -> None:
        """Do not: processes wait in the environment, and nothing here is asynchronous."""
        raise RuntimeError(f"virtual time cannot be slept through ({delay_s} s)")


class Planner:
    """Makes plans and makes them true, one at a time.

    Attributes:
        plans: All that were made.
        busy: A rollout is under way.
        decisions: Times that a strategy was asked.
    """

    def __init__(
        self,
        deployment: Deployment,
        models: tuple[Model, ...],
        world: World,
        executor: Executor,
        timing: Timing,
    ) -> None:
        self.plans: list[PlanMade] = []
        self.busy = False
        self.decisions = 0
        self._deployment = deployment
        self._settings = deployment.planner
        self._models = models
        self._world = world
        self._executor = executor
        self._timing = timing
        self._ids = count(1)
        self._news: Event | None = None
        self._wanted: Observation | None = None  # at the last decision, with what it wanted
        self._decided_s = -math.inf
        self._active: Plan | None = None

    def notify(self) -> None:
        """Something may have changed."""
        if self._news is not None:
            self._news.succeed()
            self._news = None

    def run(self, env: Environment, disturb: Callable[[], None]) -> Waiting:
        """Reconcile for ever. The first plan is in force at once: it is where a scenario begins.

        Args:
            env: Virtual time.
            disturb: Called before and after what requests would notice.
        """
        while True:
            seen = self._world.observe()
            trigger = None
            if seen is not None:
                trigger = cause(self._wanted, seen, self._settings.triggers)
            if seen is None or trigger is None:
                self._news = env.event()
                yield self._news
                continue
            delay_s = wait_s(trigger.kind, env.now - self._decided_s, self._settings.triggers)
            if delay_s > 0:
                # Less would not advance a clock that counts in floats.
                yield env.timeout(max(delay_s, _TICK_S))
                continue
            timing = _AT_ONCE if trigger.kind is Kind.FIRST else self._timing
            yield env.timeout(timing.decide_s)
            decision, plan = self._decided(*self._demanding(trigger, seen))
            changes = self._changes(decision, plan)
            if changes:
                yield from self._roll(env, decision, plan, timing, disturb)
            self._world.decided(trigger, changed=changes)

    def _roll(
        self,
        env: Environment,
        decision: Decision,
        plan: Plan,
        timing: Timing,
        disturb: Callable[[], None],
    ) -> Waiting:
        plan = replace(plan, version=len(self.plans) + 1)
        disturb()
        self.busy = True
        self.plans.append(PlanMade.of(plan, decision, env.now))
        yield from self._executor.execute(Order.of(plan, decision, self._deployment), timing)
        self.plans[-1] = replace(self.plans[-1], active_s=env.now)
        self._world.level.forget()
        self._active, self.busy = plan, False
        disturb()

    def _demanding(self, trigger: Trigger, seen: Observation) -> tuple[Trigger, Observation]:
        """Ask more of the plan where promises are broken; the same would come out otherwise."""
        if not (seen.late or seen.inaccurate):
            return trigger, seen
        world = self._world
        world.level.demand_more(world.objective.accuracy_floor, world.clock.monotonic())
        return trigger, replace(seen, demand_rps=world.demand_rps())

    def _decided(self, trigger: Trigger, seen: Observation) -> tuple[Decision, Plan]:
        snapshot = self._snapshot(seen)
        decision = decide(snapshot, self._settings, lambda: f"s-{next(self._ids)}")
        self.decisions += 1
        self._world.level.forget()
        circumstances = Circumstances(
            reason=trigger.reason,
            snapshot=snapshot,
            load_forecast={},
            now=self._world.clock.now(),
            solve_s=0.0,
            staleness_s=self._world.signal.staleness_s(self._world.clock.monotonic()),
        )
        plan = draft(decision, circumstances)
        self._decided_s = self._world.clock.monotonic()
        self._wanted = replace(seen, segments=specs(plan), late=(), inaccurate=())
        return decision, plan

    def _changes(self, decision: Decision, plan: Plan) -> bool:
        """Tell whether to carry a plan out: not one that changes nothing, nor an empty one."""
        if self._active is not None and same(plan, self._active):
            return False
        return bool(plan.segments) or not decision.running

    def _snapshot(self, seen: Observation) -> Snapshot:
        world = self._world
        now_s = world.clock.monotonic()
        return Snapshot(
            gpus=world.fleet.gpus(seen.intensity_gco2e_per_kwh, now_s),
            models=tuple(
                replace(model, demand_rps=seen.demand_rps[model.name]) for model in self._models
            ),
            running=tuple(run for node in world.fleet.nodes(now_s) for run in node.segments),
            shares=self._executor.shares,
            objective=world.aims(),
            strategy=seen.strategy,
            forecast=world.forecast(seen.intensity_gco2e_per_kwh),
        )

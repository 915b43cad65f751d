"""Online mode: the search with profiles unknown or stale, against the fleet as it is.

Each configuration that `services.planner.core.online_search.search` asks for becomes a plan, is
rolled out, serves for a while and is measured. All of a search is one coroutine, so that dropping
it is returning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from services.kit.config import Planner as Settings
from services.kit.telemetry import logs
from services.planner.adapters import prometheus
from services.planner.adapters.store import Store
from services.planner.control.cluster_state import World
from services.planner.control.plan_lifecycle import Conductor
from services.planner.control.planning import Draft, Planning
from services.planner.core.model import Configuration, Segment
from services.planner.core.online_search.counter_readings import measured
from services.planner.core.online_search.measurement import Measurement
from services.planner.core.online_search.search import PROPOSE, OnlineSearch
from services.planner.core.plan import Plan
from services.planner.core.strategies import REGISTRY
from services.planner.core.strategies.without_pipelines import without_pipelines
from services.planner.core.triggers import Observation, Trigger

_log = logs.get("learner")

Overtaken = Callable[[], bool]
"""Tells whether a search must make room."""

_EVALUATION: Final = "evaluation "
_SETTLING: Final = 0.1
_LEAST_SPAN: Final = 0.5
"""Share of an evaluation's time below which what ran is not worth measuring."""
_LOOK_S: Final = 1.0


def cut(plan: Plan) -> bool:
    """Tell whether a plan was an evaluation; where no search goes on, its search was cut."""
    return plan.reason.startswith(_EVALUATION)


class Learner:
    """Searches, one search at a time.

    Args:
        settings: The planner's.
        world: What the service is told.
        planning: Makes plans of configurations.
        store: Keeps beliefs.
        conductor: Carries plans out.
    """

    def __init__(
        self,
        settings: Settings,
        world: World,
        planning: Planning,
        store: Store,
        conductor: Conductor,
    ) -> None:
        self._settings = settings
        self._world = world
        self._planning = planning
        self._store = store
        self._conductor = conductor

    def searches(self, strategy: str) -> bool:
        """Tell whether a strategy's plans are found by trying."""
        return self._settings.online.enabled and strategy in PROPOSE

    async def search(self, trigger: Trigger, seen: Observation, overtaken: Overtaken) -> None:
        """Try configurations until none is promising any more; then the best one stays.

        Args:
            trigger: What caused the search.
            seen: What is known; it holds for the whole search.
            overtaken: True drops the search: what is being evaluated stays until something else
                is decided, and what was learned is kept.

        Raises:
            ServiceError: Nothing can be decided.
            StepFailed: A rollout failed; the plan is written as FAILED.
        """
        search = await self._begun(seen)
        number = 0
        while (asked := await self._planning.think(seen.strategy, search.ask)) is not None:
            number += 1
            found = await self._chosen(
                f"{_EVALUATION}{number}: {trigger.reason}", search, asked, seen
            )
            await self._conductor.carry(trigger.kind, found, seen, told=True)
            told = await self._evaluated(found.decision.target, overtaken)
            if told is None:
                _log.info("search dropped", cause=trigger.reason, evaluations=number)
                return
            await self._learn(search, told)
            prometheus.EVALUATIONS.inc()
        await self._conclude(search, number, trigger, seen)

    async def _begun(self, seen: Observation) -> OnlineSearch:
        """Return a search that knows what was learned before, and what runs."""
        problem = without_pipelines(await self._planning.posed(seen))
        beliefs = await self._store.beliefs()
        search = OnlineSearch(problem, beliefs, propose=PROPOSE[seen.strategy])
        told = self._ran(problem.running, seen)
        if told is not None:
            await self._learn(search, told)
        return search

    def _ran(self, running: Iterable[Segment], seen: Observation) -> Measurement | None:
        """Return what the active plan did since it was last measured, if that says something."""
        running, now = tuple(running), self._conductor.standing
        if now.active is None or now.since is None:
            return None
        if {each.segment_id for each in running} != {
            s.spec.segment_id for s in now.active.segments
        }:
            return None
        before, now.since = now.since, self._world.reading()
        told = measured(before, now.since, running)
        if told.span_s < _LEAST_SPAN * self._settings.online.evaluate_s:
            return None
        # How long requests waited under another demand says nothing of this one.
        limit, then_rps = self._settings.triggers.demand_change, now.active.inputs.demand_rps
        return replace(
            told,
            latency_s={
                model: latency_s
                for model, latency_s in told.latency_s.items()
                if abs(seen.demand_rps[model] - then_rps[model]) <= limit * then_rps[model]
            },
        )

    async def _evaluated(
        self, target: Iterable[Segment], overtaken: Overtaken
    ) -> Measurement | None:
        """Let a configuration serve, and measure it; None: the search must make room.

        Where requests turn out to be late, that is measurement enough.
        """
        world, now = self._world, self._conductor.standing
        world.level.forget()
        evaluate_s = self._settings.online.evaluate_s
        before = world.reading()
        if await self._served(_SETTLING * evaluate_s, overtaken):
            before = world.reading()
            await self._served((1 - _SETTLING) * evaluate_s, overtaken)
        now.since = before
        if overtaken():
            return None
        now.since = world.reading()
        return measured(before, now.since, target)

    async def _served(self, span_s: float, overtaken: Overtaken) -> bool:
        """Wait; return False where it was cut short: overtaken, or requests are late."""
        world = self._world

        def over() -> bool:
            return overtaken() or bool(world.level.late())

        ends_s = world.clock.monotonic() + span_s
        while (left_s := ends_s - world.clock.monotonic()) > 0:
            if await world.changed.until(over, min(left_s, _LOOK_S)):
                return False
        return True

    async def _learn(self, search: OnlineSearch, told: Measurement) -> None:
        await self._planning.think("online", partial(search.tell, told))
        await self._store.save_beliefs(search.beliefs)
        _log.info("measured", span_s=round(told.span_s, 1), latency_s=told.latency_s)

    async def _conclude(
        self, search: OnlineSearch, evaluations: int, trigger: Trigger, seen: Observation
    ) -> None:
        """Carry out the best configuration that was measured.

        Where none kept the SLA, what the strategy finds with the figures that are believed now.
        """
        think, strategy = self._planning.think, seen.strategy
        best = await think(strategy, lambda: search.best)
        tried = f"best of {evaluations} evaluation(s)" if evaluations else "nothing to evaluate"
        if best is None:
            tried = f"none of {evaluations} evaluation(s) kept the SLA"
            best = await think(strategy, lambda: REGISTRY[strategy](search.believed))
        found = await self._chosen(f"{tried}: {trigger.reason}", search, best, seen)
        active = self._conductor.standing.active
        ends = active is not None and cut(active)
        await self._conductor.carry(trigger.kind, found, seen, told=ends)

    async def _chosen(
        self, reason: str, search: OnlineSearch, configuration: Configuration, seen: Observation
    ) -> Draft:
        """Return a configuration as a plan, with the figures that are believed now."""
        believed = await self._planning.think(seen.strategy, lambda: search.believed)
        return await self._planning.chosen(reason, believed, configuration, seen)

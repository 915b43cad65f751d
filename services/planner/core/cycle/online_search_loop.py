"""Online search on the live fleet, with unknown or outdated profiles.

Each configuration that `services.planner.core.online_search.search` proposes becomes a plan, is
rolled out, serves for a while and is measured. A search is one coroutine: returning from it ends
the search.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from cinquefoil.planner.v1.records import Plan
from services.kit.plurals import counted
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.environment import Draft, Environment
from services.planner.core.cycle.plan_lifecycle import PlanLifecycle
from services.planner.core.cycle.planning import Planning
from services.planner.core.decide import Snapshot
from services.planner.core.model import Configuration, Segment
from services.planner.core.online_search.measurement import Measurement, measured
from services.planner.core.online_search.search import PROPOSE, OnlineSearch
from services.planner.core.strategies import REGISTRY
from services.planner.core.strategies.single_slices import single_slices
from services.planner.core.triggers import Trigger

Interrupted = Callable[[], bool]
"""Returns whether a search must end."""

_EVALUATION: Final = "evaluation "
_SETTLING: Final = 0.1
_MIN_SPAN: Final = 0.5
"""Share of an evaluation's time below which its measurement is not used."""
_LOOK_S: Final = 1.0


def is_evaluation(plan: Plan) -> bool:
    """Return whether a plan was an evaluation; without a running search, its search was cut."""
    return plan.reason.startswith(_EVALUATION)


@dataclass(frozen=True, slots=True, eq=False)
class OnlineSearchLoop:
    """Runs online searches, one at a time.

    Attributes:
        _state: State of the cluster.
        _environment: Stores beliefs, and runs strategies.
        _planning: Makes plans of configurations.
        _lifecycle: Carries plans out.
    """

    _state: ClusterState
    _environment: Environment
    _planning: Planning
    _lifecycle: PlanLifecycle

    def applies(self, strategy: str) -> bool:
        """Return whether a strategy uses online search."""
        return self._state.settings.online.enabled and strategy in PROPOSE

    async def run(self, trigger: Trigger, now: Snapshot, interrupted: Interrupted) -> None:
        """Evaluate configurations until none is promising any more; then apply the best one.

        Args:
            trigger: Cause of the search.
            now: The cluster; its objective and demand hold for the whole search.
            interrupted: Returns whether to stop: the evaluated configuration stays until the next
                decision, and measurements are kept.

        Raises:
            ServiceError: Nothing can be decided.
            StepFailed: A rollout failed; the plan is stored as FAILED.
        """
        environment, search = self._environment, await self._begun(now)
        number = 0
        while (chosen := await environment.think(now.strategy, search.propose)) is not None:
            number += 1
            reason = f"{_EVALUATION}{number}: {trigger.reason}"
            draft = await self._chosen(reason, search, chosen, now)
            await self._lifecycle.carry_out(trigger.kind, draft, always=True)
            measurement = await self._evaluated(draft.decision.target, interrupted)
            if measurement is None:
                environment.log.info("search dropped", cause=trigger.reason, evaluations=number)
                return
            await self._learn(search, measurement)
            environment.count_evaluation()
        await self._conclude(search, number, trigger, now)

    async def _begun(self, now: Snapshot) -> OnlineSearch:
        """Return a search that knows earlier measurements and what runs."""
        profiled = self._state.with_profiles(now)
        problem = single_slices(await self._planning.posed(profiled))
        search = OnlineSearch(problem, self._state.beliefs, propose=PROPOSE[now.strategy])
        measurement = self._ran(problem.running, now)
        if measurement is not None:
            await self._learn(search, measurement)
        return search

    def _ran(self, running: Iterable[Segment], now: Snapshot) -> Measurement | None:
        """Return the work of the active plan since its last measurement; None: not significant."""
        standing = self._lifecycle.standing
        measurement, active = standing.ran(self._state, running), standing.active
        span_s = _MIN_SPAN * self._state.settings.online.evaluate_s
        if measurement is None or active is None or measurement.span_s < span_s:
            return None
        # Waiting times under another demand are not comparable with this one's.
        limit, then_rps = self._state.settings.triggers.demand_change, active.inputs.demand_rps
        now_rps = {each.name: each.demand_rps for each in now.models}
        return replace(
            measurement,
            latency_s={
                model: latency_s
                for model, latency_s in measurement.latency_s.items()
                if abs(now_rps[model] - then_rps[model]) <= limit * then_rps[model]
            },
        )

    async def _evaluated(
        self, target: Iterable[Segment], interrupted: Interrupted
    ) -> Measurement | None:
        """Serve with a configuration and measure it; None: the search was interrupted.

        The measurement ends early if requests turn out to be late.
        """
        state, standing = self._state, self._lifecycle.standing
        state.level.forget()
        evaluate_s = self._state.settings.online.evaluate_s
        before = state.reading()
        if await self._served(_SETTLING * evaluate_s, interrupted):
            before = state.reading()
            await self._served((1 - _SETTLING) * evaluate_s, interrupted)
        standing.since = before
        if interrupted():
            return None
        standing.since = state.reading()
        return measured(before, standing.since, target)

    async def _served(self, span_s: float, interrupted: Interrupted) -> bool:
        """Wait; return False if cut short: interrupted, or requests are late."""
        state = self._state

        def over() -> bool:
            return interrupted() or bool(state.level.late())

        ends_s = state.clock.monotonic() + span_s
        while (left_s := ends_s - state.clock.monotonic()) > 0:
            if await state.changed.until(over, min(left_s, _LOOK_S)):
                return False
        return True

    async def _learn(self, search: OnlineSearch, measurement: Measurement) -> None:
        await self._environment.think("online", partial(search.learn, measurement))
        self._state.believe(search.beliefs)
        await self._environment.store.save_beliefs(search.beliefs)
        self._environment.log.info(
            "measured", span_s=round(measurement.span_s, 1), latency_s=measurement.latency_s
        )

    async def _conclude(
        self, search: OnlineSearch, evaluations: int, trigger: Trigger, now: Snapshot
    ) -> None:
        """Carry out the best configuration that was measured.

        If none kept the SLA, the strategy's decision with the current beliefs.
        """
        think, strategy = self._environment.think, now.strategy
        best = await think(strategy, lambda: search.best)
        tried = (
            f"best of {counted(evaluations, 'evaluation')}"
            if evaluations
            else "nothing to evaluate"
        )
        if best is None:
            tried = f"none of {counted(evaluations, 'evaluation')} kept the SLA"
            best = await think(strategy, lambda: REGISTRY[strategy](search.believed))
        draft = await self._chosen(f"{tried}: {trigger.reason}", search, best, now)
        active = self._lifecycle.standing.active
        ends = active is not None and is_evaluation(active)
        await self._lifecycle.carry_out(trigger.kind, draft, always=ends)

    async def _chosen(
        self, reason: str, search: OnlineSearch, configuration: Configuration, now: Snapshot
    ) -> Draft:
        """Return a configuration as a plan, with figures from the current beliefs."""
        believed = await self._environment.think(now.strategy, lambda: search.believed)
        return await self._planning.chosen(reason, believed, configuration, now)

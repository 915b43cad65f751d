"""Drafts of plans from snapshots."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from cinquefoil.planner.v1.records import Plan, PlannedSegment, WhatIf
from services.kit.config import Objective
from services.kit.errors import FailedPrecondition
from services.planner.core import feasibility
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.conditions import cluster_conditions
from services.planner.core.cycle.environment import Draft, Environment
from services.planner.core.decide import Decision, Snapshot, adopt, decide, pose, realise, staying
from services.planner.core.model import Configuration, Problem
from services.planner.core.plan_builder import build_plan
from services.planner.core.routing_table import by_capacity
from services.planner.core.triggers import Observation
from services.planner.core.what_if import revised

_LEEWAY = 1.5
"""Factor by which a batch may turn out to be faster than profiled."""


class Undecided(Exception):
    """No decision was made; what runs stays. The message gives the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Planning:
    """Makes drafts; stores nothing, changes nothing."""

    _state: ClusterState
    _environment: Environment

    def snapshot(self) -> Snapshot:
        """Return the cluster.

        Raises:
            FailedPrecondition: Too little is known to plan.
        """
        now = self._state.snapshot(self._environment.shares)
        if now is None:
            found = cluster_conditions(self._state)
            why = "; ".join(map(str, found)) or "the fleet is not complete yet"
            raise FailedPrecondition(f"nothing can be decided yet: {why}")
        return now

    async def decided(self, reason: str, now: Snapshot, limit_s: float = math.inf) -> Draft:
        """Return the strategy's decision as a draft.

        Args:
            reason: Reason of the plan.
            now: The cluster.
            limit_s: Limit of the search, if shorter than the setting, s.

        Raises:
            ServiceError: Nothing can be decided; Unavailable: the strategy crashed.
        """
        settings = self._state.settings
        if limit_s < settings.time_limit_s:
            settings = settings.model_copy(update={"time_limit_s": limit_s})
        return await self._drafted(
            reason, now, lambda: decide(now, settings, self._environment.new_id)
        )

    async def posed(self, now: Snapshot) -> Problem:
        """Return the problem of a search in which profiles are only hints.

        Raises:
            ServiceError: There is no valid problem.
        """
        return await self._environment.think(
            now.strategy, lambda: pose(now, self._state.settings, leeway=_LEEWAY)
        )

    async def chosen(
        self, reason: str, problem: Problem, configuration: Configuration, now: Snapshot
    ) -> Draft:
        """Return a configuration that a search chose as a draft.

        Args:
            reason: Reason of the plan.
            problem: Problem that it was chosen for, with the figures to score it by.
            configuration: The configuration to run.
            now: The cluster when the problem was posed; its fleet may have changed since.

        Raises:
            FailedPrecondition: It does not fit on the fleet any more.
        """
        environment = self._environment
        fresh = self._state.refreshed(now, environment.shares)
        return await self._drafted(
            reason,
            fresh,
            lambda: realise(fresh, problem, configuration, environment.new_id),
            seen=now,
        )

    async def resumed(self, plan: Plan, now: Snapshot) -> Draft:
        """Return a draft of a plan whose rollout was interrupted, with its segments' ids.

        Raises:
            FailedPrecondition: The fleet cannot hold it.
        """
        self._must_hold(plan, now)
        models = self._state.models

        def adopted() -> Decision:
            target = feasibility.resumed(plan, now.gpus, models)
            return adopt(now, self._state.settings, target, self._environment.new_id)

        return await self._drafted(plan.reason, now, adopted)

    async def again(self, reason: str, plan: Plan, now: Snapshot) -> Draft:
        """Return a draft of an earlier plan; its segments that still run stay.

        Args:
            reason: Reason of the new plan.
            plan: The earlier plan. A dry run (version 0) keeps its segments' ids, and is scored by
                its own objective.
            now: The cluster.

        Raises:
            FailedPrecondition: The fleet cannot hold it.
        """
        self._must_hold(plan, now)
        wished = replace(now, strategy=plan.strategy)
        if not plan.version:
            mean, objective = plan.inputs.accuracy_mean, _objective_of(plan, now.objective)
            price = self._state.accuracy_price_of(objective, plan.strategy)
            wished = replace(
                wished, objective=objective, accuracy_price=mean.price_gco2e if mean else price
            )
        models = self._state.models

        def named(segment_id: str) -> str:
            return self._environment.new_id() if plan.version else segment_id

        def adopted() -> Decision:
            target = feasibility.target(plan, now.gpus, models, staying(now), named)
            return adopt(wished, self._state.settings, target, self._environment.new_id)

        return await self._drafted(reason, wished, adopted, seen=now)

    async def held(self, pinned: Plan, cause: str, now: Snapshot) -> Draft:
        """Return a draft that holds a pinned plan despite a disturbance.

        If the fleet cannot hold all of it, the rest keeps serving; if that would leave a model
        without any segment, the strategy decides, so that its requests are served.

        Raises:
            ServiceError: Nothing can be decided.
        """
        models = self._state.models
        missing = "; ".join(feasibility.lacks(pinned.segments, now.gpus, models))
        if not missing:
            return await self.again(f"holds pinned plan {pinned.version}: {cause}", pinned, now)
        self._environment.log.warning(
            "the pinned plan cannot be held", version=pinned.version, lacks=missing
        )
        left = feasibility.left_of(pinned.segments, now.gpus, models)
        if _served(left) == _served(pinned.segments):
            reason = f"what is left of pinned plan {pinned.version}: {missing}; {cause}"
            return await self.again(reason, replace(pinned, segments=by_capacity(left)), now)
        reason = f"pinned plan {pinned.version} cannot be held: {missing}; {cause}"
        return await self.decided(reason, now)

    async def _drafted(
        self,
        reason: str,
        now: Snapshot,
        make: Callable[[], Decision],
        seen: Snapshot | None = None,
    ) -> Draft:
        """Make a decision and build its plan.

        Args:
            reason: Reason of the plan.
            now: Snapshot that the decision is made from.
            make: Makes the decision.
            seen: Observation that caused it; None: `now`.
        """
        clock = self._state.clock
        started_s = clock.monotonic()
        decision = await self._environment.think(now.strategy, make)
        solve_s = clock.monotonic() - started_s
        plan = build_plan(decision, now, reason=reason, now=clock.now(), solve_s=solve_s)
        draft = Draft(plan, decision, now, Observation.of(now if seen is None else seen))
        self._environment.count_decision(draft)
        return draft

    def _must_hold(self, plan: Plan, now: Snapshot) -> None:
        missing = feasibility.lacks(plan.segments, now.gpus, self._state.models)
        if missing:
            raise FailedPrecondition("; ".join(missing), reason="FLEET_LACKS")


def _served(segments: Iterable[PlannedSegment]) -> frozenset[str]:
    return frozenset(segment.spec.model for segment in segments)


def _objective_of(plan: Plan, objective: Objective) -> Objective:
    """Return `objective` with a plan's wishes."""
    inputs = plan.inputs
    mean = inputs.accuracy_mean
    wishes = WhatIf(
        carbon_weight=None if mean or inputs.cost else inputs.carbon_weight,
        accuracy_floor=inputs.accuracy_floor,
        goals=inputs.goals,
        accuracy_mean=mean.at_least if mean else None,
        cost=inputs.cost,
    )
    return revised(objective, wishes)

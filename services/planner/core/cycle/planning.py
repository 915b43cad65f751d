"""From the world as it is to a plan: what the reconciler and a dry run have in common."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from services.kit import config
from services.kit.errors import FailedPrecondition, ServiceError, Unavailable
from services.kit.telemetry import logs
from services.planner.adapters import prometheus
from services.planner.control.cluster_state import World
from services.planner.control.publisher import Announcer
from services.planner.core import feasibility
from services.planner.core.decide import Decision, Snapshot, adopt, decide, pose, realise, staying
from services.planner.core.model import Configuration, Model, Problem
from services.planner.core.plan import LoadForecast, Plan, PlannedSegment
from services.planner.core.plan_builder import Circumstances, draft
from services.planner.core.routing_table import by_capacity
from services.planner.core.triggers import Observation
from services.planner.core.variant_blocklist import trusted
from services.planner.core.what_if import Changes, Proposal, alter

_log = logs.get("planning")

T = TypeVar("T")

_LEEWAY = 1.5
"""How much faster than profiled a batch may turn out to be."""


class Undecided(Exception):
    """Nothing was decided; what runs stays. The message says why."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan that is not stored yet. Attributes: plan (version 0), decision, snapshot."""

    plan: Plan
    decision: Decision
    snapshot: Snapshot


class Planning:
    """Makes plans; stores nothing, touches nothing. Strategies run in a thread."""

    def __init__(
        self,
        settings: config.Planner,
        nodes: Mapping[str, config.Node],
        models: Sequence[Model],
        world: World,
        announcer: Announcer,
    ) -> None:
        self._settings = settings
        self._nodes = nodes
        self._models = tuple(models)
        self._world = world
        self._announcer = announcer
        self._proposing = asyncio.Lock()  # dry runs must not starve the plans that count

    def observe(self) -> Observation:
        """Return the world as it is.

        Raises:
            FailedPrecondition: It is not known well enough to plan.
        """
        seen = self._world.observe()
        if seen is None:
            raise FailedPrecondition(
                "nothing can be decided yet: no GPU, or no carbon intensity of its zone, is known, "
                "or a node has only just left"
            )
        return seen

    async def decided(self, reason: str, seen: Observation) -> Draft:
        """Let the strategy decide.

        Raises:
            ServiceError: Nothing can be decided; Unavailable: the strategy crashed.
        """
        return await self._drafted(reason, self._snapshot(seen), _decide)

    async def posed(self, seen: Observation) -> Problem:
        """Return the problem of a search in which profiles count for little.

        Raises:
            ServiceError: It cannot be posed.
        """
        snapshot = self._snapshot(seen)
        return await self.think(
            snapshot.strategy, lambda: pose(snapshot, self._settings, leeway=_LEEWAY)
        )

    async def chosen(
        self, reason: str, problem: Problem, configuration: Configuration, seen: Observation
    ) -> Draft:
        """Take up a configuration that a search chose.

        Args:
            reason: Of the plan.
            problem: What it was chosen for, with the figures to judge it by.
            configuration: What shall run.
            seen: What was known when the problem was posed.

        Raises:
            FailedPrecondition: It does not fit on the fleet any more.
        """

        def realised(snapshot: Snapshot, _settings: config.Planner) -> Decision:
            return realise(snapshot, problem, configuration, new_id)

        return await self._drafted(reason, self._snapshot(seen), realised)

    async def think(self, strategy: str, work: Callable[[], T]) -> T:
        """Let a strategy work in a thread.

        Raises:
            ServiceError: As the work raises it; Unavailable: it crashed.
        """
        try:
            return await asyncio.to_thread(work)
        except ServiceError:
            raise
        except Exception as error:
            # The border to strategies: one that crashes must not take the routes down with it.
            _log.exception("strategy crashed", strategy=strategy)
            raise Unavailable(f"strategy {strategy} crashed: {error}") from error

    async def resumed(self, plan: Plan, seen: Observation) -> Draft:
        """Take up a plan whose rollout was interrupted, its segments' ids and all.

        Raises:
            FailedPrecondition: The fleet cannot hold it.
        """
        snapshot = self._snapshot(seen)
        self._must_hold(plan, snapshot)

        def adopted(snapshot: Snapshot, settings: config.Planner) -> Decision:
            return adopt(snapshot, settings, feasibility.resumed(plan, snapshot.gpus, self._models))

        return await self._drafted(plan.reason, snapshot, adopted)

    async def again(self, reason: str, plan: Plan, seen: Observation) -> Draft:
        """Carry a plan out that was made before; what runs of it already stays.

        Args:
            reason: Of the new plan.
            plan: The one of before. A dry run's (version 0) keeps its segments' ids, and is
                judged by its own objective.
            seen: The world as it is.

        Raises:
            FailedPrecondition: The fleet cannot hold it.
        """
        snapshot = replace(self._snapshot(seen), strategy=plan.strategy)
        if not plan.version:
            snapshot = replace(snapshot, objective=_wishes(plan, snapshot.objective))
        self._must_hold(plan, snapshot)
        named = _as_planned if not plan.version else _afresh

        def adopted(snapshot: Snapshot, settings: config.Planner) -> Decision:
            stay = staying(snapshot)
            target = feasibility.target(plan, snapshot.gpus, self._models, stay, named)
            return adopt(snapshot, settings, target)

        return await self._drafted(reason, snapshot, adopted)

    async def proposed(self, changes: Changes) -> Proposal:
        """Return what would be decided under other circumstances.

        Raises:
            InvalidArgument: A change is out of range, or names what does not exist.
            FailedPrecondition: Nothing can be decided yet.
        """
        snapshot = alter(self._snapshot(self.observe()), changes, self._nodes)
        async with self._proposing:
            made = await self._drafted("dry run", snapshot, _decide)
        return Proposal(made.plan, made.decision, made.decision.problem)

    async def held(self, pinned: Plan, cause: str, seen: Observation) -> Draft:
        """Hold a pinned plan although something was disturbed.

        Where the fleet cannot hold all of it, what is left of it serves on; where that would leave
        a model without any segment, the strategy decides, so that its requests are served.

        Raises:
            ServiceError: Nothing can be decided.
        """
        gpus = self._snapshot(seen).gpus
        missing = "; ".join(feasibility.lacks(pinned.segments, gpus, self._models))
        if not missing:
            reason = f"holds pinned plan {pinned.version}: {cause}"
            return await self.again(reason, pinned, seen)
        _log.warning("the pinned plan cannot be held", version=pinned.version, lacks=missing)
        left = feasibility.left_of(pinned.segments, gpus, self._models)
        if _served(left) == _served(pinned.segments):
            reason = f"what is left of pinned plan {pinned.version}: {missing}; {cause}"
            return await self.again(reason, replace(pinned, segments=by_capacity(left)), seen)
        reason = f"pinned plan {pinned.version} cannot be held: {missing}; {cause}"
        return await self.decided(reason, seen)

    async def _drafted(
        self,
        reason: str,
        snapshot: Snapshot,
        make: Callable[[Snapshot, config.Planner], Decision],
    ) -> Draft:
        started_s = self._world.clock.monotonic()
        decision = await self.think(snapshot.strategy, lambda: make(snapshot, self._settings))
        solve_s = self._world.clock.monotonic() - started_s
        prometheus.SOLVE_SECONDS.labels(snapshot.strategy).observe(solve_s)
        circumstances = Circumstances(
            reason=reason,
            snapshot=snapshot,
            load_forecast=self._load_forecast(),
            now=self._world.clock.now(),
            solve_s=solve_s,
            staleness_s=self._world.signal.staleness_s(self._world.clock.monotonic()),
        )
        return Draft(draft(decision, circumstances), decision, snapshot)

    def _snapshot(self, seen: Observation) -> Snapshot:
        world = self._world
        now_s = world.clock.monotonic()
        return Snapshot(
            gpus=world.fleet.gpus(seen.intensity_gco2e_per_kwh, now_s),
            leaving=world.fleet.leaving(seen.intensity_gco2e_per_kwh, now_s),
            models=tuple(
                replace(model, demand_rps=seen.demand_rps[model.name])
                for model in trusted(self._models, seen.distrusted)
            ),
            running=tuple(run for node in world.fleet.nodes(now_s) for run in node.segments),
            shares=self._announcer.shares,
            objective=world.aims(),
            strategy=seen.strategy,
            forecast=world.forecast(seen.intensity_gco2e_per_kwh),
        )

    def _load_forecast(self) -> dict[str, LoadForecast]:
        found = self._world.demand.forecasts()
        return {
            model: LoadForecast(each.expected_rps, each.low_rps, each.high_rps)
            for model, each in found.items()
        }

    def _must_hold(self, plan: Plan, snapshot: Snapshot) -> None:
        missing = feasibility.lacks(plan.segments, snapshot.gpus, self._models)
        if missing:
            raise FailedPrecondition("; ".join(missing), reason="FLEET_LACKS")


def _served(segments: Iterable[PlannedSegment]) -> frozenset[str]:
    return frozenset(segment.spec.model for segment in segments)


def new_id() -> str:
    """Return a segment id that was never used."""
    return f"s-{uuid.uuid4().hex[:12]}"


def _as_planned(segment_id: str) -> str:
    return segment_id


def _afresh(_segment_id: str) -> str:
    return new_id()


def _wishes(plan: Plan, objective: config.Objective) -> config.Objective:
    """Return the objective that a plan records, as far as it does."""
    known = {"carbon_weight", "accuracy_floor", "goals"}
    return objective.model_copy(update={name: getattr(plan.inputs, name) for name in known})


def _decide(snapshot: Snapshot, settings: config.Planner) -> Decision:
    return decide(snapshot, settings, new_id)

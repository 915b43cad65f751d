"""Queries of operators: dry runs, explanations and differences of plans, and the account."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from cinquefoil.planner.v1.records import (
    DryRunResponse,
    Explanation,
    Plan,
    PlanDiff,
    Prediction,
    WhatIf,
)
from services.kit.config import Deployment
from services.kit.config import Planner as Settings
from services.kit.errors import InvalidArgument
from services.planner.adapters.store import Store
from services.planner.control.accounting_writer import AccountingWriter
from services.planner.control.dry_runs import Basis, DryRuns
from services.planner.control.reconciler import Reconciler
from services.planner.core import feasibility
from services.planner.core.accounting.entries import HOUR, EntryKey, Figures, Grouping, hour_of
from services.planner.core.accounting.moved import RegionKey, by_region
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.environment import Draft
from services.planner.core.cycle.waiting_work import WaitingWork
from services.planner.core.decide import Snapshot, configuration_of, pose
from services.planner.core.explain.explain import DecidedPlan, explain, outline
from services.planner.core.explain.explanation import diff
from services.planner.core.model import Model
from services.planner.core.triggers import Observation
from services.planner.core.what_if import alter, of_another_world, wished_budgets

BRIEF_S: Final = 1.0
"""Longest search of a strategy while a person waits, s."""
MAX_WEIGHTS: Final = 32
_STRETCH: Final = timedelta(days=1)


class Queries:
    """Answers queries. Only `apply` changes what runs; solving runs in a thread."""

    def __init__(  # noqa: PLR0913, PLR0917 - one argument per collaborator
        self,
        state: ClusterState,
        store: Store,
        account_writer: AccountingWriter,
        reconciler: Reconciler,
        waiting: WaitingWork,
        region: str = "",
    ) -> None:
        """Prepare to answer.

        Args:
            state: The cluster.
            store: Plans and the account.
            account_writer: Writes the account.
            reconciler: Carries out plans.
            waiting: Work that can wait.
            region: Name of this region; "": there is one.
        """
        self._region = region
        self._waiting = waiting
        self._state = state
        self._store = store
        self._account_writer = account_writer
        self._reconciler = reconciler
        self._dry_runs = DryRuns(state.clock)
        self._thinking = asyncio.Lock()  # queries must not starve plans of threads

    async def dry_run(self, changes: WhatIf, *, brief: bool = False) -> DryRunResponse:
        """Return the decision under other circumstances, with its explanation.

        A plan for other wishes (objective, strategy) can be applied; one for other facts (demand,
        grid, fleet) cannot.

        Args:
            changes: Changes to the circumstances.
            brief: Whether a person waits: the strategy searches for at most BRIEF_S, and no
                alternatives are given.

        Raises:
            InvalidArgument: A change is out of range, or names what does not exist.
            FailedPrecondition: Nothing can be decided yet.
        """
        basis = self._basis()
        answer = await self._answer(partial(self._altered, changes=changes), brief=brief)
        within = changes.waiting_within or None
        if within is not None and not timedelta(minutes=1) <= within <= timedelta(days=7):
            raise InvalidArgument.at("waiting_within", f"must be 1 min..7 d, got {within}")
        planning = self._reconciler.cycle.planning
        now = self._altered(planning.snapshot(), changes)
        released = self._waiting.what_if(now, None if within is None else within.total_seconds())
        answer = replace(answer, releases=released)
        if of_another_world(changes):
            return answer
        return replace(answer, proposal_id=self._dry_runs.keep(answer.plan, basis))

    def _altered(self, now: Snapshot, changes: WhatIf) -> Snapshot:
        """Return a snapshot under other circumstances."""
        state = self._state
        found = alter(now, changes, state.fleet.settings, state.accuracy_price_of)
        if not changes.carbon_budgets:
            return found
        models = {model.name for model in now.models}
        return state.budgeted(found, wished_budgets(changes, models, state.fleet.sites))

    async def sweep(
        self, changes: WhatIf, carbon_weights: Sequence[float]
    ) -> AsyncIterator[tuple[float, Prediction]]:
        """Yield the prediction for each weight of carbon, as soon as it is decided.

        Args:
            changes: Other changes to the circumstances.
            carbon_weights: CLOVER's lambda, 0..1 each, at most MAX_WEIGHTS.

        Raises:
            InvalidArgument, FailedPrecondition: As for `dry_run`, or there are too many weights.
        """
        if not 1 <= len(carbon_weights) <= MAX_WEIGHTS:
            raise InvalidArgument.at(
                "carbon_weights", f"must be 1..{MAX_WEIGHTS} of them, got {len(carbon_weights)}"
            )
        for weight in carbon_weights:
            circumstances = replace(changes, carbon_weight=weight, carbon_budgets=())
            wished = partial(self._altered, changes=circumstances)
            draft = await self._reconciler.propose(wished, BRIEF_S)
            yield weight, draft.plan.prediction

    async def dry_run_of(self, deployment: Deployment, models: tuple[Model, ...]) -> DryRunResponse:
        """Return the decision with changed settings, with its explanation; it cannot be applied.

        Args:
            deployment: The changed deployment.
            models: Its models, with their profiles.

        Raises:
            FailedPrecondition: Nothing can be decided yet.
        """
        return await self._answer(lambda now: self._state.reconfigured(now, deployment, models))

    async def dry_run_without(self, node: str) -> DryRunResponse:
        """Return the decision if a node were drained, with its explanation; it cannot be applied.

        Raises:
            FailedPrecondition: Nothing can be decided yet, or without the node.
        """

        def without(now: Snapshot) -> Snapshot:
            staying = tuple(gpu for gpu in now.gpus if gpu.node != node)
            leaving = tuple(gpu for gpu in now.gpus if gpu.node == node)
            return replace(now, gpus=staying, leaving=(*now.leaving, *leaving))

        return await self._answer(without)

    async def _answer(
        self, alter: Callable[[Snapshot], Snapshot], *, brief: bool = False
    ) -> DryRunResponse:
        draft = await self._reconciler.propose(alter, BRIEF_S if brief else math.inf)
        if brief:
            explanation = await asyncio.to_thread(outline, _decided(draft))
        else:
            async with self._thinking:
                explanation = await asyncio.to_thread(explain, _decided(draft))
        active = await self._store.active()
        return DryRunResponse(
            plan=draft.plan,
            explanation=explanation,
            diff=None if active is None else diff(active, draft.plan),
            proposal_id="",
        )

    async def explain(self, version: int) -> Explanation:
        """Return the explanation of a plan, from the snapshot stored with it; 0: the newest.

        Raises:
            NotFound: There is no such plan, or its snapshot was not kept.
        """
        plan = await self._store.plan(version)
        snapshot = await self._store.snapshot(plan.version, self._state.models)
        async with self._thinking:
            return await asyncio.to_thread(_explain, plan, snapshot, self._state.settings)

    async def diff(self, from_version: int, to_version: int) -> PlanDiff:
        """Return the difference of two plans.

        Args:
            from_version: First plan; 0: the active plan, or the newest if none is active.
            to_version: Second plan; 0: the newest plan.

        Raises:
            NotFound: There is no such plan.
        """
        active = None if from_version else await self._store.active()
        before = active or await self._store.plan(from_version)
        return diff(before, await self._store.plan(to_version))

    async def account(
        self, since: datetime | None, until: datetime | None, by: Grouping
    ) -> AsyncIterator[Sequence[tuple[EntryKey | RegionKey, Figures]]]:
        """Yield the account's entries in order of hour, with all energy drawn up to now.

        They are read a day at a time, so that years of them are never in memory at once.

        Args:
            since: A time in the first hour; None: the oldest hour.
            until: A time in the last hour, or its end; None: now.
            by: Column by which the entries of an hour are summed.

        Raises:
            InvalidArgument: `until` is not after `since`, or there is one region.
            Unavailable: The database is away.
        """
        if by == "region" and not self._region:
            raise InvalidArgument.at("by", "this deployment has one region: it has no `regions`")
        now = self._state.clock.now()
        if since is not None and (until or now) <= since:
            raise InvalidArgument.at(
                "until",
                f"must be after since ({since:%Y-%m-%d %H:%M} UTC), "
                f"got {until or now:%Y-%m-%d %H:%M}",
            )
        await self._account_writer.save()
        oldest = await self._store.pages.oldest()
        if oldest is None:
            return
        start = max(oldest, hour_of(since or oldest))
        end = hour_of(min(until or now, now) + HOUR - timedelta(microseconds=1))
        while start < end:
            following = min(start + _STRETCH, end)
            found = await self._store.pages.read(start, following, by)
            if by == "region":
                moved = await self._store.pages.moved(start, following)
                yield by_region(found, moved, self._region)
            else:
                yield found
            start = following

    async def apply(self, proposal_id: str, principal: str = "") -> Plan:
        """Carry out the plan of a dry run for an operator; return it with its version.

        Raises:
            NotFound: There is no such proposal, or it has expired.
            FailedPrecondition: The state has changed since it was made.
        """
        return await self._reconciler.apply(
            self._dry_runs.plan(proposal_id, self._basis()), principal
        )

    def _basis(self) -> Basis:
        now, version = self._state.snapshot({}), self._account_writer.active_version
        if now is None:
            return Basis(version)
        seen = Observation.of(now)
        return Basis(version, seen.gpus, seen.segments)


def _decided(draft: Draft) -> DecidedPlan:
    return DecidedPlan(
        version=0,
        problem=draft.decision.problem,
        configuration=draft.decision.configuration,
        solve_s=draft.plan.prediction.solve_s,
        segments=draft.decision.target,
        strategy=draft.plan.strategy,
    )


def _explain(plan: Plan, snapshot: Snapshot, settings: Settings) -> Explanation:
    problem = pose(snapshot, settings)
    segments = feasibility.resumed(plan, snapshot.gpus, snapshot.models)
    decided = configuration_of(segments, problem)
    return explain(
        DecidedPlan(
            version=plan.version,
            problem=problem,
            configuration=replace(decided, gap=plan.prediction.gap),
            solve_s=plan.prediction.solve_s,
            segments=segments,
            strategy=plan.strategy,
        )
    )

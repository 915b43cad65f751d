"""Keeps the fleet's account and the active plan's outcome, and writes both down as they grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from services.kit import deployment, logs
from services.kit.clock import Clock
from services.kit.errors import Unavailable
from services.planner import metrics
from services.planner.accounting import Account, Spent
from services.planner.plan import Outcome, Plan
from services.planner.routers import LoadReport
from services.planner.service_level import Aim
from services.planner.store import Store

_log = logs.get("books")

_SAVE_INTERVAL_S = 2.0


class Books:
    """Totals of the fleet, and of the active plan."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        nodes: Mapping[str, deployment.Node],
        intensity_gco2e_per_kwh: Mapping[str, float],
        aims: Mapping[str, Aim],
    ) -> None:
        self._store = store
        self._clock = clock
        self._nodes = nodes
        self._intensity = intensity_gco2e_per_kwh
        self._aims = aims
        self._account = Account()
        self._version = 0
        self._outcome = Outcome(clock.now())

    @property
    def total(self) -> Spent:
        """What the fleet has spent since its account began."""
        return self._account.total

    @property
    def active_version(self) -> int:
        """Version of the active plan; 0: none."""
        return self._version

    def outcome(self) -> Outcome:
        """Return what was seen of the active plan so far."""
        active_s = (self._clock.now() - self._outcome.since).total_seconds()
        return replace(self._outcome, active_s=max(active_s, self._outcome.active_s))

    async def restore(self, active: Plan | None) -> None:
        """Go on where the last process stopped."""
        self._account = await self._store.account()
        metrics.FLEET_ENERGY.inc(self.total.energy_j)
        metrics.FLEET_CARBON.inc(self.total.carbon_gco2e)
        if active is not None and active.outcome is not None:
            self._version, self._outcome = active.version, active.outcome
            metrics.PLAN_VERSION.set(active.version)

    def read(self, node: str, meters_j: Mapping[str, float], pue: float) -> None:
        """Take in the meters of a node's GPUs, J, and its PUE.

        Before the zone's intensity is known nothing is booked: the meters keep it for later.
        """
        settings = self._nodes[node]
        intensity = self._intensity.get(settings.zone)
        if intensity is None:
            return
        before = self.total
        self._account = self._account.read(meters_j, pue=pue, intensity_gco2e_per_kwh=intensity)
        spent = self.total - before
        metrics.FLEET_ENERGY.inc(max(spent.energy_j, 0.0))
        metrics.FLEET_CARBON.inc(max(spent.carbon_gco2e, 0.0))
        self._outcome = replace(
            self._outcome,
            energy_j=self._outcome.energy_j + spent.energy_j,
            carbon_gco2e=self._outcome.carbon_gco2e + spent.carbon_gco2e,
        )

    def answered(self, report: LoadReport) -> None:
        """Take in what a router answered: how many requests, how fast, and how accurately."""
        self._outcome = _with_answers(self._outcome, report, self._aims)

    async def activate(self, version: int) -> None:
        """Close the books of the plan before and open those of `version`, now active."""
        closed_version, closed = self._version, self.outcome()
        self._version, self._outcome = version, Outcome(self._clock.now())
        await self._store.save_outcome(closed_version, closed, self._account)
        await self._store.activate(version, self._outcome.since)
        metrics.PLAN_VERSION.set(version)

    async def save(self) -> None:
        """Write both down."""
        await self._store.save_outcome(self._version, self.outcome(), self._account)

    async def keep(self) -> None:
        """Write both down every two seconds, for ever."""
        while True:
            await self._clock.sleep(_SAVE_INTERVAL_S)
            try:
                await self.save()
            except Unavailable as error:  # the meters keep it for later
                _log.warning("the books were not written", error=error.message)


def _with_answers(outcome: Outcome, report: LoadReport, aims: Mapping[str, Aim]) -> Outcome:
    """Return the outcome after a router's report."""
    accuracy, answered = dict(outcome.accuracy), dict(outcome.answered)
    for model, by_variant in report.by_variant.items():
        aim, count = aims.get(model), sum(by_variant.values())
        if aim is None or not count:
            continue
        before = answered.get(model, 0)
        gained = sum(aim.accuracies.get(variant, 0.0) * n for variant, n in by_variant.items())
        answered[model] = before + count
        accuracy[model] = (accuracy.get(model, 0.0) * before + gained) / answered[model]
    return replace(
        outcome,
        requests=outcome.requests + report.answered,
        latency_s={**outcome.latency_s, **report.latency_s},
        accuracy=accuracy,
        answered=answered,
    )

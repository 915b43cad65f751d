"""Accumulation of the fleet's account and the active plan's outcome, and their periodic writing."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cinquefoil.planner.v1.records import Outcome, Plan
from services.kit.clock import Clock
from services.kit.errors import Unavailable
from services.kit.telemetry import logs
from services.planner.adapters import prometheus
from services.planner.adapters.store import Rejected, Store
from services.planner.core.accounting.account import Spent
from services.planner.core.accounting.accountant import NO_MODEL, Accountant, Metered, Page
from services.planner.core.accounting.baseline import BaselineRates
from services.planner.core.accounting.counters import EnergyCounters
from services.planner.core.accounting.entries import hour_of
from services.planner.core.accounting.moved import Moved, MovedKey
from services.planner.core.accounting.site import Site
from services.planner.core.load_report import LoadReport
from services.planner.core.service_level import ServiceTarget

_log = logs.get("accounting")

_COLLECT_INTERVAL_S = 0.5
_SAVE_INTERVAL_S = 2.0
_MAX_SAVE_INTERVAL_S = 10.0
_SAVE_SHARE = 0.03
"""Share of the time that writing may take: the account of many nodes must leave room."""


@dataclass(frozen=True, slots=True)
class _Sheet:
    """Page of the account with a plan's version and outcome, written together."""

    page: Page
    version: int
    outcome: Outcome


class AccountingWriter:
    """Totals of the fleet and of the active plan, and the account by hour.

    Attributes:
        collect: Books pending reports through `book`; called before figures are read or written. In
            a large fleet it books only some, so that others need not wait.
        collect_each: Books all pending reports, one node at each step.
        active_version: Version of the active plan; 0: none.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - one argument per collaborator
        self,
        store: Store,
        clock: Clock,
        sites: Callable[[str], Site | None],
        aims: Mapping[str, ServiceTarget],
        retention: timedelta = timedelta(days=400),
        on_metered: Callable[[Metered], None] = lambda _: None,
    ) -> None:
        self.collect: Callable[[], None] = lambda: None
        self.collect_each: Callable[[], Iterable[None]] = tuple
        self._store = store
        self._clock = clock
        self._aims = aims
        self._retention = retention
        self._sites = sites
        self._on_metered = on_metered
        self._accountant = Accountant(sites, on_metered=on_metered)
        self.active_version = 0
        self._outcome = Outcome(since=clock.now())
        self._writing = asyncio.Lock()
        self._unwritten: _Sheet | None = None  # begun; unknown whether it was written
        self._purged: datetime | None = None
        self._clamped: set[str] = set()  # nodes with implausible reports

    @property
    def total(self) -> Spent:
        """Energy and carbon of the fleet since its account began."""
        self.collect()
        return self._accountant.account.total

    def outcome(self) -> Outcome:
        """Return the outcome of the active plan so far."""
        self.collect()
        active_s = (self._clock.now() - self._outcome.since).total_seconds()
        return replace(self._outcome, active_s=max(active_s, self._outcome.active_s))

    async def restore(self, active: Plan | None) -> None:
        """Continue the account where the last process stopped."""
        self._accountant = Accountant(
            self._sites, await self._store.pages.account(), self._on_metered
        )
        prometheus.FLEET_ENERGY.inc(self.total.energy_j)
        prometheus.FLEET_CARBON.inc(self.total.carbon_gco2e)
        if active is not None and active.outcome is not None:
            self.active_version, self._outcome = active.version, active.outcome
            prometheus.PLAN_VERSION.set(active.version)

    def book(self, node: str, reported: Mapping[str, EnergyCounters]) -> None:
        """Book the counters of a node's GPUs, by UUID.

        Until the zone's intensity is known nothing is booked: the next report covers the gap.
        """
        reported, clamped = self._accountant.bounded(node, reported, self._clock.monotonic())
        for name in clamped:
            prometheus.CLAMPED.labels(f"energy.{name}").inc()
        if clamped and node not in self._clamped:
            self._clamped.add(node)
            _log.warning(
                "an agent reports implausible energy; it is cut",
                node=node,
                fields=clamped,
            )
        spent = self._accountant.book(node, reported)
        prometheus.FLEET_ENERGY.inc(max(spent.energy_j, 0.0))
        prometheus.FLEET_CARBON.inc(max(spent.carbon_gco2e, 0.0))
        self._outcome = replace(
            self._outcome,
            energy_j=self._outcome.energy_j + spent.energy_j,
            carbon_gco2e=self._outcome.carbon_gco2e + spent.carbon_gco2e,
        )

    def move(self, moved: Mapping[MovedKey, Moved]) -> None:
        """Add requests that went between regions."""
        self._accountant.move(moved)

    def rate(self, rates: BaselineRates) -> None:
        """Set BASE's energy per request from now on."""
        self._accountant.rate(rates)

    def answered(self, report: LoadReport) -> None:
        """Add a router's answers: their number, latency and accuracy."""
        self._accountant.count(report.router_id, report.tokens, self._clock.now())
        self._outcome = _with_answers(self._outcome, report, self._aims)

    async def activate(self, version: int) -> None:
        """Write the outcome of the previous plan, and begin that of `version`, now active."""
        async with self._writing:
            await self._finish()
            await self._collect_all()
            closed = self._sheet()
            self.active_version, self._outcome = version, Outcome(since=self._clock.now())
            await self._write(closed)
            await self._store.activate(version, self._outcome.since)
        prometheus.PLAN_VERSION.set(version)

    async def save(self) -> None:
        """Write everything that is not written yet."""
        async with self._writing:
            await self._collect_all()
            await self._save()

    async def keep(self) -> None:
        """Write booked entries every two seconds, for ever; every ten where writing is slow."""
        pause_s = _SAVE_INTERVAL_S
        while True:
            for _ in range(round(pause_s / _COLLECT_INTERVAL_S)):
                await self._clock.sleep(_COLLECT_INTERVAL_S)
                self.collect()
            began_s = self._clock.monotonic()
            try:
                async with self._writing:
                    await self._save()
                took_s = self._clock.monotonic() - began_s
                pause_s = min(max(took_s / _SAVE_SHARE, _SAVE_INTERVAL_S), _MAX_SAVE_INTERVAL_S)
            except Unavailable as error:  # the next page covers it
                _log.warning("the account was not written", error=error.message)

    async def _collect_all(self) -> None:
        for _ in self.collect_each():
            await asyncio.sleep(0)  # gives way to other work in a large fleet

    async def _save(self) -> None:
        await self._finish()
        await self._write(self._sheet())

    def _sheet(self) -> _Sheet:
        self.collect()
        return _Sheet(self._accountant.page(), self.active_version, self.outcome())

    async def _finish(self) -> None:
        """Write the sheet whose writing failed, which may have been written after all."""
        if self._unwritten is not None:
            await self._write(self._unwritten)

    async def _rewind(self) -> None:
        """Return to the written state of the account and of the active plan."""
        self._accountant.rewind(await self._store.pages.account())
        plan = await self._store.active()
        written = plan.outcome if plan is not None and plan.version == self.active_version else None
        self._outcome = written or Outcome(since=self._outcome.since)

    async def _write(self, sheet: _Sheet) -> None:
        """Write a sheet, and once an hour delete old hours.

        A sheet that the database rejects is dropped, as it always would be. Its energy is booked
        again: the GPUs' counters continue from where the account was last written.

        Raises:
            Unavailable: The sheet was not written, and is the next to write.
        """
        self._unwritten = sheet
        hour = hour_of(self._clock.now())
        keep_from = None if hour == self._purged else hour - self._retention
        try:
            await self._store.pages.save(sheet.page, sheet.version, sheet.outcome, keep_from)
            _count(sheet.page)
        except Rejected as error:
            prometheus.DROPPED_SHEETS.inc()
            _log.error("a sheet of the account was rejected and dropped", error=str(error))
            await self._rewind()
        self._unwritten, self._purged = None, hour


def _count(page: Page) -> None:
    """Add the models' entries of a written page to the metrics."""
    for key, figures in page.entries.items():
        if key.model != NO_MODEL:
            prometheus.MODEL_CARBON.labels(key.model).inc(max(figures.carbon_gco2e, 0.0))
            base_gco2e = max(figures.base_carbon_gco2e, 0.0)
            prometheus.MODEL_BASE_CARBON.labels(key.model).inc(base_gco2e)


def _with_answers(
    outcome: Outcome, report: LoadReport, aims: Mapping[str, ServiceTarget]
) -> Outcome:
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

"""Grid events of the live planner: accepted, kept, and turned into power budgets in time."""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from cinquefoil.condition.v1.records import Condition
from cinquefoil.planner.v1.records import (
    GridEvent,
    GridEventReport,
    GridEventStatus,
    HistoryPoint,
    SitePower,
)
from services.kit.clock import Clock
from services.kit.config import Grid
from services.kit.errors import FailedPrecondition, NotFound, ServiceError
from services.kit.segment import plain
from services.kit.telemetry import logs
from services.planner.adapters.store import Store
from services.planner.control.history import History
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.grid_events.baseline import LOOK_BACK_D, Course, baseline
from services.planner.core.grid_events.events import (
    Baseline,
    GridEvents,
    checked,
    with_limit,
)
from services.planner.core.grid_events.report import report, window
from services.planner.core.grid_events.site_meter import SiteNodes
from services.planner.core.power.budgets import PowerBudget

_log = logs.get("grid_events")

_HOUR_S: Final = 3600
_LATELY: Final = timedelta(minutes=15)
"""Time whose mean power stands for the baseline where no similar days are known."""


class LiveGridEvents:
    """Grid events: in memory, in the store, and as budgets of the cluster's state.

    Args:
        store: The open database.
        clock: Source of time.
        state: Receives budgets.
        history: Past power of sites.
        settings: Limits of events, and their levels.
        devices_w: Returns the metered power of the devices of each connected node, W.

    Attributes:
        lost: Budgets of sites whose server of events is out of reach, by server.
        conditions: Conditions of servers of events, by server.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - one argument per collaborator
        self,
        store: Store,
        clock: Clock,
        state: ClusterState,
        history: History,
        settings: Grid,
        devices_w: Callable[[], Mapping[str, float]],
    ) -> None:
        self._store, self._clock, self._state, self._history = store, clock, state, history
        self._settings = settings
        self._devices_w = devices_w
        self._known = GridEvents()
        self._writing = asyncio.Lock()
        self.lost: dict[str, PowerBudget] = {}
        self.conditions: dict[str, Condition] = {}

    async def restore(self) -> None:
        """Continue with the events that the planner before this one kept."""
        self._known = GridEvents(await self._store.grid_events())
        self.apply()

    async def put(self, order: GridEvent, source: str, principal: str = "") -> GridEvent:
        """Announce an event, or change it; return it as it is kept.

        Raises:
            ServiceError: It is not allowed; nothing changes.
        """
        now = self._clock.now()
        name = order.event_id or f"{source}-{uuid.uuid4().hex[:8]}"
        order = replace(
            order,
            event_id=name,
            source=source,
            principal=principal,
            announced_at=now,
            cancelled_at=None,
            baseline_w=0.0,
            baseline_method="",
        )
        order = checked(order, self._settings, self._state.power.sites, now)
        course = await self._course(order)
        known = None if course is None else Baseline(course.mean_w, course.method)
        event = with_limit(order, self._settings, known)
        async with self._writing:
            changed = GridEvents(self._known.events.values())
            event = changed.put(event, now)
            await self._keep(changed)
        _log.info(
            "grid event",
            event_id=plain(event.event_id),
            site=event.site,
            limit_w=event.limit_w,
            start=event.start.isoformat(),
            end=event.end.isoformat(),
            source=source,
            principal=principal,
        )
        return self._shown(event)

    async def cancel(self, event_id: str, principal: str = "") -> GridEvent:
        """Cancel an event; return it as it is kept.

        Raises:
            NotFound: There is none.
            Unavailable: The database is away; nothing changes.
        """
        async with self._writing:
            changed = GridEvents(self._known.events.values())
            event = changed.cancel(event_id, self._clock.now())
            await self._keep(changed)
        _log.info("grid event cancelled", event_id=plain(event_id), principal=principal)
        return self._shown(event)

    async def take(self, orders: asyncio.Queue[GridEvent], source: str) -> None:
        """Announce or cancel what is put into a queue, for ever; what is refused is logged.

        An order that has the status CANCELLED cancels the source's event of its name.
        """
        while True:
            order = await orders.get()
            try:
                if order.status is not GridEventStatus.CANCELLED:
                    await self.put(order, source)
                elif any(each.event_id == order.event_id for each in self.of_source(source)):
                    await self.cancel(order.event_id, source)
            except ServiceError as error:
                name = plain(order.event_id)
                _log.warning("a grid event was refused", event_id=name, why=error.message)

    def listed(self, *, over: bool) -> list[GridEvent]:
        """Return events with their status, the latest start first."""
        return self._known.listed(self._clock.now(), over=over)

    def of_source(self, source: str) -> list[GridEvent]:
        """Return the events of a source that are not over."""
        return [each for each in self._known.open(self._clock.now()) if each.source == source]

    def sites(self) -> list[SitePower]:
        """Return the power of every site now."""
        state, devices_w = self._state, self._devices_w()
        nodes = SiteNodes.of(state.fleet, state.power.sites)
        in_force, metered_w = state.power.in_force(self._clock.now()), nodes.power_w(devices_w)
        return [
            SitePower(
                site,
                budget.limit_w if (budget := in_force.get(site)) else None,
                budget.setting if budget else "",
                metered_w.get(site, 0.0),
                sum(
                    each.site == site and name not in devices_w
                    for name, each in nodes.nodes.items()
                ),
            )
            for site in sorted(state.power.sites)
        ]

    async def report(self, event_id: str) -> GridEventReport:
        """Return the report of an event.

        Raises:
            NotFound: There is none.
            FailedPrecondition: It has not begun.
        """
        event = self._known.events.get(event_id)
        if event is None:
            raise NotFound.at("event_id", f"there is no grid event {plain(event_id)!r}")
        now = self._clock.now()
        begin, start, end = window(event, now)
        if end <= start:
            begins = f"it begins {event.start:%Y-%m-%d %H:%M} UTC"
            raise FailedPrecondition.at("event_id", f"{event_id} has not begun: {begins}")
        step_s, points = await self._points(begin, end)
        course = await self._course(event)
        return report(self._shown(event), points, step_s, course, self._zone(event.site), now)

    def apply(self) -> None:
        """Set the budgets of all events, and of servers that are out of reach."""
        budgets = (*self._known.budgets(self._clock.now()), *self.lost.values())
        self._state.set_power_events(budgets)

    async def _keep(self, changed: GridEvents) -> None:
        await self._store.grid_events.save(tuple(changed.events.values()))
        self._known = changed
        self.apply()

    def _shown(self, event: GridEvent) -> GridEvent:
        return next(each for each in self.listed(over=True) if each.event_id == event.event_id)

    async def _course(self, event: GridEvent) -> Course | None:
        """Return the baseline of an event, by what is known up to its announcement or start."""
        known_until = min(event.announced_at, event.start)
        begin = min(event.start, known_until) - timedelta(days=LOOK_BACK_D + 1)
        _, hours = await self._points(begin, known_until, _HOUR_S)
        _, minutes = await self._points(known_until - _LATELY, known_until)
        limited = self._limits(event)
        known_w = _means(minutes, event.site)
        lately = [w for at_s, w in known_w.items() if not limited(at_s, at_s + 60)]
        return baseline(
            {
                at_s: w
                for at_s, w in _means(hours, event.site).items()
                if not limited(at_s, at_s + _HOUR_S)
            },
            event.start,
            event.end,
            known_until=known_until,
            lately_w=sum(lately) / len(lately) if lately else self._now_w(event),
        )

    def _now_w(self, event: GridEvent) -> float | None:
        """Return the site's power now; None: not known, or limited by the event itself."""
        now = self._clock.now()
        if event.start < now and event.event_id in self._known.events:
            return None
        return next(
            (s.metered_w for s in self.sites() if s.site == event.site and s.metered_w), None
        )

    def _limits(self, event: GridEvent) -> Callable[[int, int], bool]:
        others = [
            (each.start.timestamp(), (each.cancelled_at or each.end).timestamp())
            for each in self._known.events.values()
            if each.site == event.site and each.event_id != event.event_id
        ]
        return lambda since, until: any(since < end and start < until for start, end in others)

    async def _points(
        self, since: datetime, until: datetime, step_s: int = 0
    ) -> tuple[int, list[HistoryPoint]]:
        found: list[HistoryPoint] = []
        async for length_s, points in self._history.read(since, until, step_s):
            step_s = length_s
            found += points
        return step_s, found

    def _zone(self, site: str) -> str:
        fleet = self._state.fleet
        nodes = SiteNodes.of(fleet, self._state.power.sites).nodes
        return next((fleet.settings[n].zone for n, each in nodes.items() if each.site == site), "")


def _means(points: Iterable[HistoryPoint], site: str) -> dict[int, float]:
    """Return a site's mean power by the start of each point, Unix time, W."""
    return {
        int(each.since.timestamp()): its.energy_j / its.metered_s
        for each in points
        if (its := each.sites.get(site)) and its.metered_s
    }

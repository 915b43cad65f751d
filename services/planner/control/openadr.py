"""OpenADR servers of the live planner: their events are followed, and reports sent back."""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.planner.v1.records import GridEvent, GridEventReport, GridEventStatus
from services.kit.clock import Clock
from services.kit.config import Grid, OpenAdr
from services.kit.errors import ServiceError, Unavailable
from services.kit.openadr import Unreadable, units_of
from services.kit.segment import plain
from services.kit.telemetry import logs
from services.planner.adapters.openadr import MAX_EVENTS, VtnClient
from services.planner.control.grid_events import LiveGridEvents
from services.planner.core.energy_prices.course import MOST_STEPS, PriceStep
from services.planner.core.grid_events.openadr import Reader, leading
from services.planner.core.power.budgets import PowerBudget

_log = logs.get("openadr")
_tracebacks = logs.Tracebacks()

_MAX_INTERVALS: Final = 8192
MAX_OPEN: Final = 64
"""Most limits of a server that are followed at a time, the earliest first."""

_AGAIN: Final = ":"
"""Stands before the count in the name of an event that was withdrawn, and is announced again."""

_MAX_SEEN: Final = 4096
_MOST_AHEAD_S: Final = 60.0
"""Difference of a server's clock from which it is wrong, s: a report's minute."""

_MAX_PROGRAMS: Final = 64
_REPORTED_FOR_S: Final = 86_400.0


@dataclass(slots=True)
class _Problems:
    """Events of a poll that cannot be followed.

    Attributes:
        count: How many.
        first: The first of them, and why.
    """

    count: int = 0
    first: str = ""

    def add(self, what: object, why: str) -> None:
        self.count += 1
        self.first = self.first or f"{plain(str(what))[:60]}: {why}"


class OpenAdrServer:
    """One server: polled for ever.

    Args:
        name: Its name in `grid.openadr`.
        settings: Its settings.
        grid: Limits of events.
        events: Receives its events.
        announce: Receives all of its prices, at each poll.
        clock: Source of time.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - one argument per collaborator
        self,
        name: str,
        settings: OpenAdr,
        grid: Grid,
        events: LiveGridEvents,
        announce: Callable[[list[PriceStep]], None],
        clock: Clock,
    ) -> None:
        self._setting = f"grid.openadr.{name}"
        self._source = f"openadr/{name}"
        self._settings, self._events, self._clock = settings, events, clock
        self._announce = announce
        self._longest_s = grid.max_ahead_s
        self._reader = Reader(name, settings.site, settings.ven_name, grid.emergency_level)
        self._first_seen: dict[str, datetime] = {}
        self._reported: set[str] = set()
        self._withdrawn: dict[str, int] = {}  # how often, by name
        self._answered_s = clock.monotonic()

    async def follow(self) -> None:
        """Poll for ever; failures are conditions, and nothing ends."""
        async with VtnClient.connected(self._settings) as client:
            while True:
                try:
                    await self._poll(client)
                except ServiceError as error:
                    self._note_failure(error.message)
                except Exception as error:  # noqa: BLE001 - logged; the planner must go on
                    # Border to a server of others: whatever it answers, the planner keeps planning.
                    _log.error("OpenADR", server=self._source, **_tracebacks.details(error))
                    self._note_failure(f"{type(error).__name__}")
                # Spread, so that a site's planners do not poll in step.
                await self._clock.sleep(self._settings.poll_s * random.uniform(0.9, 1.0))  # noqa: S311

    async def _poll(self, client: VtnClient) -> None:
        found, more = await self._read(client)
        self._answered_s = self._clock.monotonic()
        self._events.lost.pop(self._source, None)
        problems = _Problems()
        units = await self._units(client, found)
        orders, prices = await asyncio.to_thread(self._orders, found, units, problems)
        if more or len(orders) > MAX_OPEN:
            problems.add(
                "events", f"at most {MAX_EVENTS} events and {MAX_OPEN} limits are followed"
            )
        await self._apply(dict(list(orders.items())[:MAX_OPEN]), problems)
        self._events.apply()
        self._announce(prices)
        self._note(problems, _clock_note(client.ahead_s))
        if self._settings.reports:
            await self._report(client)

    async def _read(self, client: VtnClient) -> tuple[list[object], bool]:
        found: list[object] = []
        more = False
        for program in self._settings.program_ids or ("",):
            events, left = await client.events(program)
            found += events
            more = more or left
        return found, more

    async def _units(
        self, client: VtnClient, events: list[object]
    ) -> Mapping[str, Mapping[str, str]]:
        """Return units by program, of programs whose events have none of their own."""
        wanted = {
            each["programID"]
            for each in events
            if isinstance(each, dict)
            and isinstance(each.get("programID"), str)
            and each["programID"].replace("-", "").replace("_", "").isalnum()
            and not each.get("payloadDescriptors")
        }
        found = {}
        for name in sorted(wanted)[:_MAX_PROGRAMS]:
            try:
                found[name] = units_of((await client.program(name)).get("payloadDescriptors"))
            except Unavailable:
                continue  # kW, as the standard's examples have it
        return found

    def _orders(
        self, events: list[object], units: Mapping[str, Mapping[str, str]], problems: _Problems
    ) -> tuple[dict[str, GridEvent], list[PriceStep]]:
        """Return the limits that are not over, by name, the earliest start first, and prices."""
        now = self._clock.now()
        found: dict[str, GridEvent] = {}
        prices: list[PriceStep] = []
        read = leading(events, _MAX_INTERVALS)
        if len(read) < len(events):
            problems.add("events", f"at most {_MAX_INTERVALS} intervals of all are read")
        for event in read:
            name = str(event.get("id"))[:128] if isinstance(event, dict) else "?"
            first_seen = self._first_seen.setdefault(name, now)
            program = str(event.get("programID")) if isinstance(event, dict) else ""
            try:
                orders, steps = self._reader.read(event, units.get(program, {}), first_seen)
                prices += steps[: MOST_STEPS - len(prices)]
                for order in orders:
                    if order.end > now:
                        found[order.event_id] = replace(order, source=self._source)
            except Unreadable as error:
                problems.add(name, str(error))
        while len(self._first_seen) > _MAX_SEEN:
            del self._first_seen[next(iter(self._first_seen))]
        return dict(sorted(found.items(), key=lambda item: (item[1].start, item[0]))), prices

    async def _apply(self, wanted: Mapping[str, GridEvent], problems: _Problems) -> None:
        """Announce what is new or changed, and cancel what is gone."""
        known = {each.event_id: each for each in self._events.of_source(self._source)}
        wanted = {self._fresh(name): order for name, order in wanted.items()}
        for name in known.keys() - wanted.keys():
            await self._events.cancel(name, self._source)
            self._withdraw(name)
        for name, found in wanted.items():
            order = replace(found, event_id=name)
            if name in known and _same(known[name], order):
                continue
            try:
                await self._events.put(order, self._source, self._source)
            except Unavailable:
                raise
            except ServiceError as error:
                problems.add(name, error.message)

    def _fresh(self, name: str) -> str:
        """Return the name of an event: another where the server has withdrawn it before."""
        times = self._withdrawn.get(name, 0)
        return f"{name}{_AGAIN}{times + 1}" if times else name

    def _withdraw(self, name: str) -> None:
        first = name.partition(_AGAIN)[0]
        self._withdrawn[first] = self._withdrawn.pop(first, 0) + 1
        while len(self._withdrawn) > _MAX_SEEN:
            del self._withdrawn[next(iter(self._withdrawn))]

    async def _report(self, client: VtnClient) -> None:
        now = self._clock.now()
        for event in self._events.listed(over=True):
            over = event.status in (GridEventStatus.ENDED, GridEventStatus.CANCELLED)
            end = event.cancelled_at or event.end
            lately = 0 <= (now - end).total_seconds() < _REPORTED_FOR_S
            fresh = event.source == self._source and event.event_id not in self._reported
            if not (over and lately and fresh) or end <= event.start:
                continue
            await client.report(
                report_message(self._settings, await self._events.report(event.event_id))
            )
            self._reported.add(event.event_id)

    def _note(self, problems: _Problems, clock: str) -> None:
        if not problems.count:
            self._events.conditions.pop(self._source, None)
            if clock:
                self._events.conditions[self._source] = Condition(
                    ConditionKind.GRID_SERVER_AWAY,
                    f"service/{self._source}",
                    f"the OpenADR server answers, but {clock}: its events may begin and end at "
                    "other times than it means",
                    f"{self._setting}.url",
                )
            return
        others = f" ({problems.count} in all)" if problems.count > 1 else ""
        self._events.conditions[self._source] = Condition(
            ConditionKind.GRID_EVENT_REFUSED,
            f"service/{self._source}",
            f"an event of the OpenADR server is not followed: {problems.first}{others}"
            + (f"; {clock}" if clock else ""),
            self._setting,
        )

    def _note_failure(self, why: str) -> None:
        """Note that the server does not answer; after a while the default limit holds."""
        silent_s = self._clock.monotonic() - self._answered_s
        settings, limit_w = self._settings, self._settings.lost_limit_w
        lost = silent_s >= settings.lost_after_s
        held = "events that are known hold to their end"
        if lost and limit_w is not None:
            setting = f"{self._setting}.lost_limit_w"
            self._events.lost[self._source] = PowerBudget(settings.site, limit_w, setting)
            self._events.apply()
            held = f"{held}, and {settings.site} draws at most {limit_w:g} W (lost_limit_w)"
        self._events.conditions[self._source] = Condition(
            ConditionKind.GRID_SERVER_AWAY,
            f"service/{self._source}",
            f"the OpenADR server has not answered for {silent_s:.0f} s: {why}; {held}",
            f"{self._setting}.url",
        )


def _clock_note(ahead_s: float) -> str:
    """Return how a server's clock is wrong; "": it is not, as far as its answers say."""
    if abs(ahead_s) < _MOST_AHEAD_S:
        return ""
    return f"its clock is {abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'} this one"


def _same(known: GridEvent, order: GridEvent) -> bool:
    """Return whether an order changes nothing of a known event."""
    limit = order.limit_w is None or known.limit_w == order.limit_w
    return limit and all(
        getattr(known, name) == getattr(order, name)
        for name in ("limit_share", "level", "change_w", "start", "end", "site", "priority")
    )


def report_message(settings: OpenAdr, report: GridEventReport) -> dict[str, Any]:
    """Return a report as OpenADR has it: demand, baseline and the change of usage by interval."""
    event = report.event
    name, _, number = event.event_id.split(".", 1)[1].partition(_AGAIN)[0].rpartition(".")
    return {
        "eventID": name,
        "clientName": settings.ven_name,
        "reportName": f"interval {number}",
        "payloadDescriptors": [
            {"payloadType": "DEMAND", "units": "KW"},
            {"payloadType": "BASELINE", "units": "KW"},
            {"payloadType": "DELTA_USAGE", "units": "KWH"},
        ],
        "resources": [
            {
                "resourceName": event.site,
                "intervals": list(_intervals(report)),
            }
        ],
    }


def _intervals(report: GridEventReport) -> Iterator[dict[str, Any]]:
    for n, point in enumerate(report.points):
        payloads = []
        if point.metered_w is not None:
            payloads.append({"type": "DEMAND", "values": [round(point.metered_w / 1e3, 6)]})
        if point.baseline_w is not None:
            payloads.append({"type": "BASELINE", "values": [round(point.baseline_w / 1e3, 6)]})
        if point.metered_w is not None and point.baseline_w is not None:
            kwh = (point.metered_w - point.baseline_w) * report.step_s / 3.6e6
            payloads.append({"type": "DELTA_USAGE", "values": [round(kwh, 9)]})
        if payloads:
            since = point.since.isoformat().replace("+00:00", "Z")
            period = {"start": since, "duration": f"PT{report.step_s}S"}
            yield {"id": n, "intervalPeriod": period, "payloads": payloads}


async def follow_all(
    servers: Mapping[str, OpenAdr],
    grid: Grid,
    events: LiveGridEvents,
    announce: Callable[[str, list[PriceStep]], None],
    clock: Clock,
) -> None:
    """Follow every server, for ever; `announce`: receives a server's prices at each poll."""
    async with asyncio.TaskGroup() as tasks:
        for name, settings in servers.items():
            server = OpenAdrServer(name, settings, grid, events, partial(announce, name), clock)
            tasks.create_task(server.follow(), name=f"planner.openadr.{name}")

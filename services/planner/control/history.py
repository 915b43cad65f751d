"""The past as the planner saw it: recorded as it runs, written once a minute, read by operators."""

import math
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import Final

from cinquefoil.planner.v1.records import HistoryPoint
from services.kit.clock import Clock
from services.kit.errors import InvalidArgument, Unavailable
from services.kit.telemetry import logs
from services.planner.adapters.store import Store
from services.planner.core.accounting.accountant import Metered
from services.planner.core.accuracy_mean.ledger import GridHour
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.grid_events.site_meter import SiteNodes
from services.planner.core.history.points import (
    LEVELS,
    MINUTE,
    Level,
    merged,
    since_s,
    start_of,
    step_for,
    stretches,
)
from services.planner.core.history.recorder import Recorder
from services.planner.core.load_report import LoadReport
from services.planner.core.model import Model

_log = logs.get("history")

_LOOK_INTERVAL_S: Final = 5.0
_DAY_S: Final = 86_400
_MAX_WAITING: Final = 120
"""Minutes that wait for a database that is away; the oldest go."""
_STRETCH: Final = 120
"""Points that are read at a time."""


class History:
    """Records minutes, sums them up to longer points, and reads them."""

    def __init__(self, store: Store, clock: Clock, state: ClusterState) -> None:
        self._store = store
        self._clock = clock
        self._state = state
        self._recorder = Recorder()
        self._looked_s = clock.monotonic()
        self._closed = deque[HistoryPoint](maxlen=_MAX_WAITING)
        self._begun: HistoryPoint | None = None  # with what was stored; unknown whether written
        self._last_s: int | None = None  # start of the minute that was written last
        self._trimmed: int | None = None  # the hour

    def meter(self, metered: Metered) -> None:
        """Record energy that was booked."""
        self._recorder.meter(metered, self._now_s())

    def answered(self, report: LoadReport) -> None:
        """Record a router's window."""
        self._recorder.report(report, self._state.level.aims, self._now_s())

    async def keep(self) -> None:
        """Do a step every five seconds, for ever."""
        while True:
            await self._clock.sleep(_LOOK_INTERVAL_S)
            await self.step()

    async def step(self) -> None:
        """Record the grid, and write the minutes that are over."""
        self._look()
        await self._write(self._recorder.closed(self._now_s(), self._models(), self._sites()))
        await self._write_hours(self._state.accuracy.ledger.unwritten())

    async def save(self) -> None:
        """Write all that is recorded, at the end."""
        self._look()
        points = self._recorder.open(self._models(), self._sites())
        self._recorder = Recorder()
        await self._write(points)
        await self._write_hours(self._state.accuracy.ledger.lately(self._now_s()))

    async def read(
        self, since: datetime | None, until: datetime | None, step_s: int = 0
    ) -> AsyncIterator[tuple[int, list[HistoryPoint]]]:
        """Yield the length of points, s, and some more points, in order of time.

        Args:
            since: Start; None: a day before the end.
            until: End; None: now.
            step_s: Wanted length of a point, s; 0: the shortest possible.

        Raises:
            InvalidArgument: `until` is not after `since`.
        """
        now_s = self._now_s()
        until_s = until.timestamp() if until else now_s
        begin_s = since.timestamp() if since else min(until_s, now_s) - _DAY_S
        if begin_s >= until_s:
            raise InvalidArgument.at("until", "must be after since")
        at_s = max(int(begin_s), int(now_s) - LEVELS[-1].step_s * LEVELS[-1].count)
        end_s = min(math.ceil(until_s), int(now_s) + 1)
        level, step_s = step_for(at_s, end_s, step_s, int(now_s))
        at_s = start_of(at_s, step_s)
        stretch_s = max(_STRETCH * level.step_s // step_s, 1) * step_s
        yield step_s, []
        while at_s < end_s:
            if points := await self._kept(level, at_s, min(at_s + stretch_s, end_s)):
                yield step_s, list(stretches(points, step_s))
            at_s += stretch_s

    async def restore(self) -> None:
        """Continue where the last process, or another planner, stopped."""
        self._last_s = await self._store.history.newest(MINUTE.step_s, int(self._now_s()))
        self._state.accuracy.ledger.restore(await self._store.grid_hours(), self._now_s())

    async def _kept(self, level: Level, since: int, until: int) -> list[HistoryPoint]:
        """Return points from `since` up to `until`; of what is not summed up yet, the minutes."""
        tail_s = since if level is MINUTE else start_of(self._last_s or since, level.step_s)
        tail_s = min(max(tail_s, since), until)
        points = await self._store.history.read(level.step_s, since, tail_s)
        minutes = await self._store.history.read(MINUTE.step_s, tail_s, until)
        begun_s = since_s(self._begun) if self._begun else None
        points += [point for point in minutes if since_s(point) != begun_s]
        newer = [*self._closed, *self._recorder.open(self._models(), self._sites())]
        if self._begun is not None:
            newer.append(self._begun)
        points += [point for point in newer if tail_s <= since_s(point) < until]
        return sorted(points, key=since_s)

    def _look(self) -> None:
        """Record the intensities in force since the last look."""
        before_s, self._looked_s = self._looked_s, self._clock.monotonic()
        known = self._state.intensity_gco2e_per_kwh
        budgets = self._state.power.in_force(self._clock.now())
        limits_w = {site: budget.limit_w for site, budget in budgets.items()}
        self._recorder.look(known, self._now_s(), self._looked_s - before_s, limits_w)

    async def _write(self, closed: Iterable[HistoryPoint]) -> None:
        """Write minutes that are over; those that cannot be written now are written next time."""
        self._closed.extend(closed)
        try:
            while self._begun or self._closed:
                self._begun = self._begun or await self._with_stored(self._closed.popleft())
                await self._save(self._begun)
                self._last_s, self._begun = since_s(self._begun), None
        except Unavailable as error:
            _log.warning("the history was not written", error=error.message)

    async def _write_hours(self, hours: Sequence[GridHour]) -> None:
        """Write the hours that the price of accuracy rests on, if one has ended."""
        if not hours:
            return
        try:
            await self._store.grid_hours.save(tuple(hours))
        except Unavailable as error:
            _log.warning("the grid's hours were not written", error=error.message)
        else:
            self._state.accuracy.ledger.written = hours[-1].number

    async def _with_stored(self, point: HistoryPoint) -> HistoryPoint:
        """Return a minute with what an earlier process, or this one, has written of it."""
        at_s = since_s(point)
        try:
            stored = await self._store.history.read(MINUTE.step_s, at_s, at_s + MINUTE.step_s)
        except Unavailable:
            self._closed.appendleft(point)
            raise
        return merged([*stored, point], at_s)

    async def _save(self, minute: HistoryPoint) -> None:
        """Write a minute, and the longer points that end before it; again does no harm."""
        now_s, points = int(self._now_s()), {(MINUTE.step_s, since_s(minute)): minute}
        for level in LEVELS[1:]:
            left_s = start_of(self._last_s or 0, level.step_s)
            if self._last_s and left_s != start_of(since_s(minute), level.step_s):
                until_s = left_s + level.step_s
                parts = await self._store.history.read(MINUTE.step_s, left_s, until_s)
                points[level.step_s, left_s] = merged(parts, left_s)
        hour = start_of(now_s, 3600)
        trims = hour != self._trimmed
        keep = {level.step_s: level.count for level in LEVELS} if trims else {}
        await self._store.history.save(points, keep, now_s)
        self._trimmed = hour

    def _sites(self) -> SiteNodes:
        return SiteNodes.of(self._state.fleet, self._state.power.sites)

    def _models(self) -> dict[str, Model]:
        return {model.name: model for model in self._state.deployed}

    def _now_s(self) -> float:
        return self._clock.now().timestamp()

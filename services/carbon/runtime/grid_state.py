"""The intensity in force in each zone, for all interfaces."""

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any

from cinquefoil.carbon.v1.records import Forecast
from services.carbon.core.forecast.forecaster import MAX_HORIZON
from services.carbon.core.model import Intensity
from services.carbon.core.monitor import Monitor
from services.kit.broadcast import Broadcast
from services.kit.clock import Clock
from services.kit.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable


class GridState:
    """The latest intensity of each zone: an immutable mapping that `publish` replaces.

    Args:
        monitors: By zone.
    """

    def __init__(self, monitors: Mapping[str, Monitor]) -> None:
        self._monitors = dict(sorted(monitors.items()))
        self._latest: Broadcast[Mapping[str, Intensity]] = Broadcast(
            {zone: monitor.latest for zone, monitor in monitors.items() if monitor.latest}
        )

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that are followed, in alphabetical order."""
        return tuple(self._monitors)

    @property
    def latest(self) -> Mapping[str, Intensity]:
        """The intensity in force in each zone that has one; never changes once read."""
        return self._latest.value

    @property
    def forecasts(self) -> Mapping[str, Forecast]:
        """The newest forecast of each zone for which one was computed, to its farthest period."""
        known = {zone: monitor.known_forecast for zone, monitor in self._monitors.items()}
        return {zone: forecast for zone, forecast in known.items() if forecast is not None}

    def publish(self, intensity: Intensity) -> None:
        """Replace a zone's intensity and wake the watchers."""
        self._latest.publish({**self.latest, intensity.zone: intensity})

    async def complete(self) -> None:
        """Wait until every zone has a value."""
        await self._latest.until(lambda latest: len(latest) == len(self._monitors))

    def close(self) -> None:
        """End every watch after the newest values have been sent."""
        self._latest.close()

    def intensity(self, zone: str) -> Intensity:
        """Return the intensity now in force in `zone`.

        Raises:
            InvalidArgument: `zone` is empty.
            NotFound: `zone` is not followed.
            Unavailable: Its source has no value yet.
        """
        self._followed(zone)
        found = self.latest.get(zone)
        if found is None:
            raise _no_value(zone)
        return found

    def history(self, zone: str, start: datetime | None, end: datetime) -> tuple[Intensity, ...]:
        """Return the past intensities of `zone` whose `since` lies in [start, end).

        Raises:
            InvalidArgument: `zone` is empty, or `start` is not before `end`.
            NotFound: `zone` is not followed.
        """
        monitor = self._followed(zone)
        if start is not None and start >= end:
            raise InvalidArgument(
                f"start must be before end ({end.isoformat()}), got {start.isoformat()}",
                field="start",
            )
        return monitor.history(start, end)

    def forecast(self, zone: str, horizon: timedelta, now: datetime) -> Forecast:
        """Return the forecast of `zone` until `horizon` after `now`.

        Raises:
            InvalidArgument: `zone` is empty, or `horizon` is not within 0..MAX_HORIZON.
            NotFound: `zone` is not followed.
            FailedPrecondition: Its signal is a percentile.
            Unavailable: Its source has no value yet.
        """
        monitor = self._followed(zone)
        check_horizon(horizon)
        if monitor.latest is not None and monitor.latest.signal == "percentile":
            raise FailedPrecondition(f"zone {zone!r} has percentiles, which are not forecast")
        found = monitor.forecast(now, horizon)
        if found is None:
            raise _no_value(zone)
        return found

    async def watch(self, zones: Collection[str]) -> AsyncIterator[tuple[Intensity, ...]]:
        """Yield the zones that have a value, then those that have changed, until `close`.

        Args:
            zones: Zones to watch; empty: all.

        Raises:
            NotFound: One of them is not followed.
        """
        for zone in zones:
            self._followed(zone, field="zones")
        wanted = [zone for zone in self._monitors if not zones or zone in zones]
        sent: dict[str, Intensity] = {}
        snapshot = True
        async for latest in self._latest.follow():
            changed = {
                zone: latest[zone]
                for zone in wanted
                if zone in latest and latest[zone] is not sent.get(zone)
            }
            if changed or snapshot:
                sent |= changed
                yield tuple(changed.values())
                snapshot = False

    def _followed(self, zone: str, *, field: str = "zone") -> Monitor:
        known = ", ".join(self._monitors)
        if not zone:
            raise InvalidArgument(f"{field} is required: one of {known}", field=field)
        monitor = self._monitors.get(zone)
        if monitor is None:
            raise NotFound(f"zone {zone!r} is not followed; there are {known}", field=field)
        return monitor


def _no_value(zone: str) -> Unavailable:
    return Unavailable(f"zone {zone!r} has no value yet", reason="NO_VALUE_YET")


def check_horizon(horizon: timedelta) -> None:
    """Check a forecast's horizon.

    Raises:
        InvalidArgument: `horizon` is not within 0..MAX_HORIZON.
    """
    if not timedelta() <= horizon <= MAX_HORIZON:
        longest_h, got_h = MAX_HORIZON / timedelta(hours=1), horizon / timedelta(hours=1)
        raise InvalidArgument(
            f"horizon must be within 0..{longest_h:g} h, got {got_h:g} h", field="horizon"
        )


async def update_zone(
    monitor: Monitor, state: GridState, grid_clock: Clock, updated: asyncio.Event | None = None
) -> None:
    """Publish each change of a zone when it is due; return after the last one.

    Args:
        monitor: Monitor of the zone.
        state: Where to publish.
        grid_clock: Grid time.
        updated: Set by live sources after each reading; with it there is no last change.
    """
    while True:
        change = monitor.next_change()
        waits: list[Coroutine[Any, Any, object]] = []
        if change is not None:
            waits.append(grid_clock.sleep((change - grid_clock.now()).total_seconds()))
        elif updated is None:
            return
        if updated is None:
            await waits[0]
        else:
            await _first([*waits, updated.wait()])
            updated.clear()
        monitor.advance(grid_clock.now())
        latest = monitor.latest
        if latest is not None and latest != state.latest.get(monitor.zone):
            state.publish(latest)


async def _first(waits: list[Coroutine[Any, Any, object]]) -> None:
    """Wait until one of the coroutines has ended, and cancel the others."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each, name="carbon.wait") for each in waits]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()

"""Where the followers write what they learn, and everyone else reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import datetime, timedelta

from services.carbon.core.forecast.forecaster import LONGEST
from services.carbon.core.model import Forecast, Intensity
from services.carbon.core.monitor import Monitor
from services.kit.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable


class Board:
    """The latest intensity of each zone: an immutable mapping that `publish` replaces.

    Readers may hold on to what they read. Watchers are woken by an event that is replaced too, so
    a slow one finds only the newest value of each zone when it comes back.
    """

    def __init__(self, monitors: Mapping[str, Monitor]) -> None:
        self._monitors = dict(sorted(monitors.items()))
        self._latest: Mapping[str, Intensity] = {
            zone: monitor.latest for zone, monitor in monitors.items() if monitor.latest
        }
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that are followed, in alphabetical order."""
        return tuple(self._monitors)

    @property
    def latest(self) -> Mapping[str, Intensity]:
        """The intensity in force in each zone that has one; never changes once read."""
        return self._latest

    def publish(self, intensity: Intensity) -> None:
        """Put up a zone's new intensity and wake the watchers."""
        self._latest = {**self._latest, intensity.zone: intensity}
        self._wake()

    async def complete(self) -> None:
        """Wait until every zone has a value."""
        while len(self._latest) < len(self._monitors):
            await self._changed.wait()

    def close(self) -> None:
        """End every watch after what is already known has been sent."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def intensity(self, zone: str) -> Intensity:
        """Return the intensity now in force in `zone`.

        Raises:
            InvalidArgument: `zone` is empty.
            NotFound: `zone` is not followed.
            Unavailable: Its source has not given a value yet.
        """
        self._followed(zone)
        if zone not in self._latest:
            raise Unavailable(f"zone {zone!r} has no value yet", reason="NO_VALUE_YET")
        return self._latest[zone]

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
        """Return what is expected of `zone` until `horizon` after `now`.

        Raises:
            InvalidArgument: `zone` is empty, or `horizon` is not within 0..LONGEST.
            NotFound: `zone` is not followed.
            FailedPrecondition: It tells percentiles.
            Unavailable: Its source has not given a value yet.
        """
        monitor = self._followed(zone)
        check_horizon(horizon)
        if monitor.latest is not None and monitor.latest.signal == "percentile":
            raise FailedPrecondition(f"zone {zone!r} tells percentiles, which are not forecast")
        found = monitor.forecast(now, horizon)
        if found is None:
            raise Unavailable(f"zone {zone!r} has no value yet", reason="NO_VALUE_YET")
        return found

    async def watch(self, zones: Collection[str]) -> AsyncIterator[tuple[Intensity, ...]]:
        """Yield the zones that have a value, then those that changed, until `close`.

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
        while True:
            changed, latest = self._changed, self._latest
            news = {
                zone: latest[zone]
                for zone in wanted
                if zone in latest and latest[zone] is not sent.get(zone)
            }
            if news or snapshot:
                sent |= news
                yield tuple(news.values())
                snapshot = False
            elif self._closed:
                return
            else:
                await changed.wait()

    def _followed(self, zone: str, *, field: str = "zone") -> Monitor:
        if not zone:
            known = ", ".join(self._monitors)
            raise InvalidArgument(f"{field} is required: one of {known}", field=field)
        monitor = self._monitors.get(zone)
        if monitor is None:
            known = ", ".join(self._monitors)
            raise NotFound(f"zone {zone!r} is not followed; there are {known}", field=field)
        return monitor


def check_horizon(horizon: timedelta) -> None:
    """Refuse to look back, or too far ahead.

    Raises:
        InvalidArgument: `horizon` is not within 0..LONGEST.
    """
    if not timedelta() <= horizon <= LONGEST:
        longest_h, got_h = LONGEST / timedelta(hours=1), horizon / timedelta(hours=1)
        raise InvalidArgument(
            f"horizon must be within 0..{longest_h:g} h, got {got_h:g} h", field="horizon"
        )

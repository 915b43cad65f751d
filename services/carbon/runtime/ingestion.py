"""Values of live sources, polled or pushed, on their way to a zone's monitor."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from services.carbon.core.monitor import Monitor
from services.carbon.core.sources.feed import Feed
from services.carbon.core.sources.provider import Provider, Reading, SourceFailed
from services.carbon.runtime import metrics
from services.carbon.sources.live.cache import Cache
from services.kit.clock import Clock
from services.kit.telemetry import logs

_log = logs.get("carbon.sources")
_MAX_PAUSE = timedelta(days=1)


class Ingestion:
    """One live source of a zone.

    Args:
        feed: Values of the source.
        monitor: Monitor of the zone.
        updated: Set after every reading and every failure; wakes the zone's update loop.
        clock: Grid time, which is real time where there are live sources.
        cache: Keeps the values over restarts; None: they are not kept.
    """

    def __init__(
        self,
        feed: Feed,
        monitor: Monitor,
        updated: asyncio.Event,
        clock: Clock,
        cache: Cache | None = None,
    ) -> None:
        self.feed = feed
        self._monitor = monitor
        self._updated = updated
        self._clock = clock
        self._cache = cache
        self._failure = ""
        self._labels = (monitor.zone, feed.name)
        self._refused: tuple[str, ...] = ()

    async def add(self, reading: Reading) -> None:
        """Add a reading and save it; impossible values are left out, and logged once."""
        now = self._clock.now()
        update = self.feed.add(reading, now)
        if update.refused and update.refused != self._refused:
            _log.warning("values left out", source=self.feed.name, because=update.refused[:3])
        self._refused = update.refused
        metrics.REFUSED.labels(*self._labels).inc(len(update.refused))
        if update.since is not None:
            self._monitor.revise(update.since, now)
        if self._failure:
            _log.info("the source is back", zone=self._monitor.zone, source=self.feed.name)
        self._failure = ""
        self._count("ok")
        if self._cache is not None:
            kept = (self.feed.known, self.feed.outlook, now, self.feed.record.issued)
            await asyncio.to_thread(self._cache.save, *kept)

    def fail(self, error: SourceFailed) -> None:
        """Note that the source gave no reading."""
        if self._failure != error.kind:
            zone, name = self._labels
            _log.warning("a source failed", zone=zone, source=name, kind=error.kind, why=str(error))
        self._failure = error.kind
        self._count(error.kind)

    def _count(self, outcome: str) -> None:
        metrics.POLLS.labels(*self._labels, outcome).inc()
        metrics.UP.labels(*self._labels).set(outcome == "ok")
        self._updated.set()


async def poll(
    provider: Provider,
    ingestion: Ingestion,
    grid_clock: Clock,
    every: timedelta,
    first: datetime | None = None,
) -> None:
    """Poll a provider until cancelled.

    A failure does not change the interval, so that a recovery is seen within one poll, unless the
    provider names a time before which it refuses requests.

    Args:
        provider: The provider.
        ingestion: Where its readings go.
        grid_clock: Time.
        every: Interval.
        first: Time of the first request; None: now.
    """
    due = grid_clock.now() if first is None else min(first, grid_clock.now() + every)
    while True:
        await grid_clock.sleep(max((due - grid_clock.now()).total_seconds(), 0.0))
        due = grid_clock.now() + every
        try:
            reading = await provider.read(grid_clock.now(), ingestion.feed.known_until)
        except SourceFailed as error:
            ingestion.fail(error)
            if error.retry_after_s is not None:
                pause = min(timedelta(seconds=error.retry_after_s), _MAX_PAUSE)
                due = max(due, grid_clock.now() + pause)
        else:
            await ingestion.add(reading)

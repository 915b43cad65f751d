"""The live sources of all zones: restored, polled or pushed, and passed on to their monitors."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from services.carbon.core.monitor import Monitor
from services.carbon.core.sources.chain import Chain
from services.carbon.core.sources.feed import Feed, Part, Reading, SourceFailed
from services.carbon.core.sources.source import Source
from services.carbon.runtime import metrics
from services.carbon.sources.live.cache import Cache
from services.carbon.sources.live.factory import provider
from services.carbon.sources.live.provider import HttpProvider, pause
from services.kit.clock import Clock
from services.kit.config import Carbon
from services.kit.config.carbon_sources import LiveSource
from services.kit.telemetry import logs

_log = logs.get("carbon.sources")


@dataclass(frozen=True, slots=True)
class LiveFeed:
    """One live source of a zone.

    Attributes:
        zone: Name of the zone.
        settings: Settings of the source.
        feed: Its values; part of the zone's chain.
        cache: Keeps the values over restarts.
        polled: Time of the last request before this start; None: none.
        provider: The polled provider; None: the source pushes.
    """

    zone: str
    settings: LiveSource
    feed: Feed
    cache: Cache
    polled: datetime | None
    provider: HttpProvider[Any] | None


def live_feeds(
    carbon: Carbon, sources: Mapping[str, Source], client: httpx.AsyncClient, now: datetime
) -> Iterator[LiveFeed]:
    """Yield the live sources of all zones, with the values that they had before a restart.

    Args:
        carbon: Settings of the service.
        sources: Source of each zone, as built from the settings.
        client: HTTP client.
        now: The time.

    Raises:
        ConfigError: A key cannot be read.
    """
    for zone, chain in sources.items():
        if not isinstance(chain, Chain):
            continue
        live = [each for each in carbon.zones[zone].sources if isinstance(each, LiveSource)]
        for settings, feed in zip(live, chain.feeds, strict=True):
            cache = Cache(Path(carbon.cache_dir), zone, settings)
            polled = cache.restore(feed, now)
            yield LiveFeed(zone, settings, feed, cache, polled, provider(settings, client))


class Ingestion:
    """Values of a live source on their way to its zone's monitor.

    Args:
        live: The source.
        monitor: Monitor of the zone.
        updated: Set after every reading and every failure; wakes the zone's update loop.
        clock: Grid time, which is real time where there are live sources.
    """

    def __init__(
        self, live: LiveFeed, monitor: Monitor, updated: asyncio.Event, clock: Clock
    ) -> None:
        self.live = live
        self._monitor = monitor
        self._updated = updated
        self._clock = clock
        self._failure = ""
        self._labels = (live.zone, live.feed.name)
        self._refused: tuple[str, ...] = ()
        self._missing: dict[Part, str] = {}

    async def add(self, reading: Reading) -> None:
        """Add a reading and save it; impossible values are left out, and logged once."""
        now, feed = self._clock.now(), self.live.feed
        update = feed.add(reading, now)
        if update.refused and update.refused != self._refused:
            _log.warning("values left out", source=feed.name, because=update.refused[:3])
        self._refused = update.refused
        metrics.REFUSED.labels(*self._labels).inc(len(update.refused))
        if update.since is not None:
            self._monitor.revise(update.since, now)
        failure = reading.failure
        if reading.samples and not update.plausible:
            why = "; ".join(update.refused[:3]) or "all values are too old"
            failure = SourceFailed("implausible", f"{feed.name}: {why}")
        if failure is None:
            self._succeed()
        else:
            self.fail(failure)
        parts = reading.parts if failure is None else {**reading.parts, "present": failure}
        self._note_parts(parts, log=failure is None)
        await asyncio.to_thread(
            self.live.cache.save, feed.known, feed.outlook, now, feed.record.issued
        )

    def fail(self, error: SourceFailed) -> None:
        """Note that the source gave no values."""
        if self._failure != error.kind:
            zone, name = self._labels
            _log.warning("a source failed", zone=zone, source=name, kind=error.kind, why=str(error))
        self._failure = error.kind
        self._count(error.kind)
        self._note_parts(error.parts, log=False)

    def _succeed(self) -> None:
        if self._failure:
            _log.info("the source is back", zone=self.live.zone, source=self.live.feed.name)
        self._failure = ""
        self._count("ok")

    def _count(self, outcome: str) -> None:
        metrics.POLLS.labels(*self._labels, outcome).inc()
        metrics.UP.labels(*self._labels).set(outcome == "ok")
        self._updated.set()

    def _note_parts(self, parts: Mapping[Part, SourceFailed | None], *, log: bool) -> None:
        """Note which parts came; log each change, unless the whole source failed."""
        zone, name = self._labels
        for part, failure in parts.items():
            metrics.PART_UP.labels(zone, name, part).set(failure is None)
            kind = "" if failure is None else failure.outcome
            if not log or self._missing.get(part, "") == kind:
                continue
            self._missing[part] = kind
            if failure is None:
                _log.info("a part is back", zone=zone, source=name, part=part)
            else:
                say = _log.info if failure.not_offered else _log.warning
                what = "a part is not offered" if failure.not_offered else "a part failed"
                say(what, zone=zone, source=name, part=part, kind=kind, why=str(failure))

    async def poll(self, polled: HttpProvider[Any]) -> None:
        """Poll the source's provider until cancelled.

        A failure does not change the interval, so that a recovery is seen within one poll, unless
        the provider names a time before which it refuses requests.
        """
        clock, every = self._clock, timedelta(seconds=self.live.settings.poll_s)
        due = clock.now()
        if self.live.polled is not None:
            due = min(self.live.polled + every, due + every)
        while True:
            await clock.sleep(max((due - clock.now()).total_seconds(), 0.0))
            due = clock.now() + every
            try:
                reading = await polled.read(clock.now(), self.live.feed.known_until)
            except SourceFailed as error:
                self.fail(error)
                due = max(due, clock.now() + self._pause(error))
            else:
                await self.add(reading)
                due = max(due, clock.now() + self._pause(reading.failure))

    def _pause(self, error: SourceFailed | None) -> timedelta:
        """Return how long the provider refuses requests; longer than a day is not believed."""
        if error is None or error.retry_after_s is None:
            return timedelta()
        found = pause(error.retry_after_s)
        if found.total_seconds() < error.retry_after_s:
            zone, name = self._labels
            days = error.retry_after_s / timedelta(days=1).total_seconds()
            _log.warning(
                "Retry-After is too long; polled again in a day",
                zone=zone,
                source=name,
                retry_after_days=round(days) if days < 1e6 else "over a million",
            )
        return found

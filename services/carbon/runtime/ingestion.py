"""Where what a live source says comes in: polled, or pushed."""

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
_LONGEST_PAUSE = timedelta(days=1)


class Intake:
    """One live source of a zone: what it says changes what the zone's monitor knows.

    Args:
        feed: Keeps what it said.
        monitor: The zone's.
        heard: Set after every word, and every silence, for `follow`.
        clock: Grid time; where there are live sources, the time.
        cache: Where to keep it over restarts; None: nowhere.
    """

    def __init__(
        self,
        feed: Feed,
        monitor: Monitor,
        heard: asyncio.Event,
        clock: Clock,
        cache: Cache | None = None,
    ) -> None:
        self.feed = feed
        self._monitor = monitor
        self._heard = heard
        self._clock = clock
        self._cache = cache
        self._failing = ""
        self._labels = (monitor.zone, feed.name)
        self._refused: tuple[str, ...] = ()

    def take(self, reading: Reading) -> None:
        """Take in what the source said; values that cannot be are left out, and told once."""
        now = self._clock.now()
        learnt = self.feed.learn(reading, now)
        if learnt.refused and learnt.refused != self._refused:
            _log.warning("values left out", source=self.feed.name, because=learnt.refused[:3])
        self._refused = learnt.refused
        metrics.REFUSED.labels(*self._labels).inc(len(learnt.refused))
        if learnt.since is not None:
            self._monitor.revise(learnt.since, now)
        if self._failing:
            _log.info("the source is back", zone=self._monitor.zone, source=self.feed.name)
        self._failing = ""
        self._tell("ok")

    def fail(self, error: SourceFailed) -> None:
        """Learn that the source said nothing."""
        if self._failing != error.kind:
            zone, name = self._labels
            _log.warning("a source failed", zone=zone, source=name, kind=error.kind, why=str(error))
        self._failing = error.kind
        self._tell(error.kind)

    async def keep(self) -> None:
        """Write down what is known."""
        if self._cache is not None:
            feed, now = self.feed, self._clock.now()
            kept = (feed.known, feed.outlook, now, feed.record.told)
            await asyncio.to_thread(self._cache.save, *kept)

    def _tell(self, outcome: str) -> None:
        metrics.POLLS.labels(*self._labels, outcome).inc()
        metrics.UP.labels(*self._labels).set(outcome == "ok")
        self._heard.set()


async def poll(
    provider: Provider,
    intake: Intake,
    grid_clock: Clock,
    every: timedelta,
    first: datetime | None = None,
) -> None:
    """Ask a provider again and again, for ever.

    A failure changes nothing in the rhythm, so that a return is seen within one poll; where the
    provider names a time before which it does not want to be asked, that counts.

    Args:
        provider: Whom to ask.
        intake: Where to put what it says.
        grid_clock: Time.
        every: From one question to the next.
        first: When to ask first; None: now.
    """
    due = grid_clock.now() if first is None else min(first, grid_clock.now() + every)
    while True:
        await grid_clock.sleep(max((due - grid_clock.now()).total_seconds(), 0.0))
        due = grid_clock.now() + every
        try:
            reading = await provider.read(grid_clock.now(), intake.feed.known_until)
        except SourceFailed as error:
            intake.fail(error)
            if error.retry_after_s is not None:
                pause = min(timedelta(seconds=error.retry_after_s), _LONGEST_PAUSE)
                due = max(due, grid_clock.now() + pause)
        else:
            intake.take(reading)
            await intake.keep()

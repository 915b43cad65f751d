"""The live sources of all zones: created, restored, and polled until the service ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from services.carbon.core.monitor import Monitor
from services.carbon.core.sources.chain import Chain
from services.carbon.core.sources.feed import Feed
from services.carbon.core.sources.provider import Provider
from services.carbon.core.sources.source import Source
from services.carbon.runtime.ingestion import Ingestion, poll
from services.carbon.sources.live.cache import Cache
from services.carbon.sources.live.factory import provider
from services.kit.clock import Clock
from services.kit.config import Carbon, LiveSource


@dataclass(frozen=True, slots=True)
class LiveFeed:
    """One live source of a zone.

    Attributes:
        zone: Name of the zone.
        settings: Settings of the source.
        feed: Its values; part of the zone's chain.
        cache: Keeps the values over restarts.
        polled: Time of the last request before this start; None: none.
        provider: Who is polled; None: the source pushes.
    """

    zone: str
    settings: LiveSource
    feed: Feed
    cache: Cache
    polled: datetime | None
    provider: Provider | None

    def ingestion(
        self, monitors: Mapping[str, Monitor], updated: Mapping[str, asyncio.Event], clock: Clock
    ) -> Ingestion:
        """Return what passes the source's values on to its zone's monitor.

        Args:
            monitors: By zone.
            updated: Events that wake the zones' update loops, by zone.
            clock: Time.
        """
        return Ingestion(self.feed, monitors[self.zone], updated[self.zone], clock, self.cache)


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


def polling_loops(
    ingestions: Iterable[tuple[LiveFeed, Ingestion]], clock: Clock
) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Yield the loops that poll, each with a name for its task.

    Args:
        ingestions: Live sources with where their values go.
        clock: Time.
    """
    for live, ingestion in ingestions:
        if live.provider is not None:
            every = timedelta(seconds=live.settings.poll_s)
            first = None if live.polled is None else live.polled + every
            name = f"carbon.poll[{live.zone}:{live.feed.name}]"
            yield name, poll(live.provider, ingestion, clock, every, first)

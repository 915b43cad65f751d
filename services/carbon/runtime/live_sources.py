"""The live sources of all zones: made, restored, and asked until the service ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
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
from services.carbon.runtime.ingestion import Intake, poll
from services.carbon.sources.live.cache import Cache
from services.carbon.sources.live.factory import provider
from services.kit.clock import Clock
from services.kit.config import Carbon, LiveSource


@dataclass(frozen=True, slots=True)
class Live:
    """One live source.

    Attributes:
        zone: Whose.
        settings: From the deployment file.
        feed: What it said; part of the zone's chain.
        cache: Where that is kept.
        asked: When it was last asked before this start; None: never.
        provider: Who asks it; None: it speaks by itself.
    """

    zone: str
    settings: LiveSource
    feed: Feed
    cache: Cache
    asked: datetime | None
    provider: Provider | None


def live_sources(
    carbon: Carbon, sources: Mapping[str, Source], client: httpx.AsyncClient, now: datetime
) -> tuple[Live, ...]:
    """Return the live sources of all zones; their feeds know again what they knew.

    Args:
        carbon: The service's settings.
        sources: Of each zone, as built from them.
        client: To ask with.
        now: The time.

    Raises:
        ConfigError: A key cannot be read.
    """
    return tuple(_live(carbon, sources, client, now))


def _live(
    carbon: Carbon, sources: Mapping[str, Source], client: httpx.AsyncClient, now: datetime
) -> Iterator[Live]:
    for zone, chain in sources.items():
        if not isinstance(chain, Chain):
            continue
        asked = [each for each in carbon.zones[zone].sources if isinstance(each, LiveSource)]
        for settings, feed in zip(asked, chain.feeds, strict=True):
            cache = Cache(Path(carbon.cache_dir), zone, settings)
            restored = cache.restore(feed, now)
            yield Live(zone, settings, feed, cache, restored, provider(settings, client))


def polls(
    live: tuple[Live, ...],
    monitors: Mapping[str, Monitor],
    heard: Mapping[str, asyncio.Event],
    clock: Clock,
) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Yield the loops that ask, each with a name for its task.

    Args:
        live: Whom to ask.
        monitors: By zone.
        heard: What wakes a zone's follower, by zone.
        clock: The time.
    """
    for each in live:
        if each.provider is None:
            continue
        every = timedelta(seconds=each.settings.poll_s)
        intake = Intake(each.feed, monitors[each.zone], heard[each.zone], clock, each.cache)
        first = None if each.asked is None else each.asked + every
        name = f"carbon.poll[{each.zone}:{each.feed.name}]"
        yield name, poll(each.provider, intake, clock, every, first)

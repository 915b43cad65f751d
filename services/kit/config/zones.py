"""Zones and their sources of carbon intensity."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from services.kit.config.carbon_sources import LiveSource, Signal, Source
from services.kit.config.section import Address, Endpoint, Name, Positive, Section


def _one_or_chain(value: Any) -> str:
    return "chain" if isinstance(value, list | tuple) else "one"


Sources = Annotated[
    Annotated[Source, Tag("one")]
    | Annotated[tuple[Source, ...], Tag("chain"), Field(min_length=1, max_length=8)],
    Discriminator(_one_or_chain),
]


class Zone(Section):
    """An electricity grid area.

    Attributes:
        source: Source of its intensity, or a list of sources with fallbacks. A static source at
            the end of a list is assumed when the others have been silent for `hold_s`.
        signal: Signal of the values. Average, marginal and percentile are never mixed.
        average_window_s: Window of the average carbon intensity (ACI), s.
        hold_s: Time for which the last value holds when all sources are silent and the list ends
            with a static one, s. Without one it holds for ever, and its age grows.
        provider_forecast: Whether to use the provider's own forecast, where it has one.
    """

    source: Sources
    signal: Signal = "average"
    average_window_s: Positive = 86_400.0
    hold_s: Positive = 21_600.0
    provider_forecast: bool = False

    @property
    def sources(self) -> tuple[Source, ...]:
        """Its sources in order of preference."""
        return self.source if isinstance(self.source, tuple) else (self.source,)

    @property
    def live(self) -> bool:
        """True if it has a live source."""
        return any(isinstance(source, LiveSource) for source in self.sources)

    def _problems(self) -> Iterator[str]:
        for source in self.sources:
            if self.signal not in source.signals:
                gives = " or ".join(source.signals)
                yield (
                    f"source: {source.kind} gives {gives} values and the zone's signal is "
                    f"{self.signal}; they are never mixed in one zone"
                )
        silent = [each for each in self.sources[:-1] if not isinstance(each, LiveSource)]
        if silent:
            yield (
                f"source: {silent[0].kind} always has a value, so that no source after it would "
                "ever be used; it must be the last"
            )


class Replay(Section):
    """Grid time for replayed sources.

    Attributes:
        start: First instant, UTC. None: now (synthetic) or the start of the trace.
        speedup: Grid seconds per second. 1440: a day in a minute.
    """

    start: datetime | None = None
    speedup: Positive = 1.0


class Carbon(Endpoint):
    """The carbon service.

    Attributes:
        zones: Electricity grid areas, by name.
        replay: Grid time, where no zone has a live source.
        cache_dir: Folder for the values of live sources, so that a restart needs no requests.
    """

    several = True

    listen: Address = "127.0.0.1:8461"
    zones: Annotated[dict[Name, Zone], Field(min_length=1)]
    replay: Replay = Replay()
    cache_dir: Path = Path("out/state/carbon")

    def _problems(self) -> Iterator[str]:
        live = sorted(name for name, zone in self.zones.items() if zone.live)
        if live and (self.replay.start is not None or self.replay.speedup != 1):
            yield (
                f"replay: zone {live[0]} is live, and live values are of the present: "
                "leave replay.start and replay.speedup out"
            )

"""Zones, and where their carbon intensity comes from."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from services.kit.config.carbon_sources import (
    CarbonAwareSdkSource,
    ElectricityMapsSource,
    EntsoeSource,
    KeyedSource,
    LiveSource,
    MqttSource,
    NesoSource,
    Signal,
    Source,
    StaticSource,
    SyntheticSource,
    TraceSource,
    WattTimeSource,
)
from services.kit.config.section import Address, Endpoint, Name, Positive, Section

__all__ = [
    "Carbon",
    "CarbonAwareSdkSource",
    "ElectricityMapsSource",
    "EntsoeSource",
    "KeyedSource",
    "LiveSource",
    "MqttSource",
    "NesoSource",
    "Replay",
    "Signal",
    "Source",
    "StaticSource",
    "SyntheticSource",
    "TraceSource",
    "WattTimeSource",
    "Zone",
]


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
        source: Where its intensity comes from; a list: the first, what stands in for it, and so
            on. A static source at the end of a list is what is assumed once nobody has known
            anything for `hold_s`.
        signal: What the numbers mean. Average, marginal and percentile are never mixed.
        average_window_s: Window of the average carbon intensity (ACI), s.
        hold_s: How long the last known value stands when all sources are silent and the list ends
            with a static one, s. Without one it stands for ever, and its age grows.
        provider_forecast: Tell the provider's own forecast, where it gives one; else ours.
    """

    source: Sources
    signal: Signal = "average"
    average_window_s: Positive = 86_400.0
    hold_s: Positive = 21_600.0
    provider_forecast: bool = False

    @property
    def sources(self) -> tuple[Source, ...]:
        """Its sources, the first first."""
        return self.source if isinstance(self.source, tuple) else (self.source,)

    @property
    def live(self) -> bool:
        """Whether a provider is asked while the service runs."""
        return any(isinstance(source, LiveSource) for source in self.sources)

    @model_validator(mode="after")
    def _one_signal(self) -> Zone:
        for source in self.sources:
            if self.signal not in source.signals:
                gives = " or ".join(source.signals)
                raise ValueError(
                    f"source: {source.kind} gives {gives} values and the zone's signal is "
                    f"{self.signal}; they are never mixed in one zone"
                )
        return self

    @model_validator(mode="after")
    def _each_link_may_be_asked(self) -> Zone:
        silent = [each for each in self.sources[:-1] if not isinstance(each, LiveSource)]
        if silent:
            raise ValueError(
                f"source: {silent[0].kind} always has a value, so that what follows it would never "
                "be asked; it must be the last"
            )
        return self


class Replay(Section):
    """Grid time for replayed sources.

    Attributes:
        start: First instant, UTC. None: now (synthetic) or the trace's beginning.
        speedup: Grid seconds per second. 1440: a day in a minute.
    """

    start: datetime | None = None
    speedup: Positive = 1.0


class Carbon(Endpoint):
    """The carbon service.

    Attributes:
        zones: Electricity grid areas, by name.
        replay: Grid time, where no zone has a live source.
        cache_dir: What live sources said is kept here, so that a restart needs to ask nobody.
    """

    listen: Address = "127.0.0.1:8461"
    zones: Annotated[dict[Name, Zone], Field(min_length=1)]
    replay: Replay = Replay()
    cache_dir: Path = Path("out/state/carbon")

    @model_validator(mode="after")
    def _live_is_now(self) -> Carbon:
        live = sorted(name for name, zone in self.zones.items() if zone.live)
        if live and (self.replay.start is not None or self.replay.speedup != 1):
            raise ValueError(
                f"replay: zone {live[0]} is asked for live, and live values are of the present: "
                "leave replay.start and replay.speedup out"
            )
        return self

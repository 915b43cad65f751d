"""Zones, and where their carbon intensity comes from."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from services.kit.deployment.section import Address, Endpoint, Name, Positive, Section


class StaticSource(Section):
    """One value for ever."""

    kind: Literal["static"]
    intensity_gco2e_per_kwh: Annotated[float, Field(ge=0)]


class SyntheticSource(Section):
    """A documented daily curve with a seed; see `services.carbon.sources.synthetic`."""

    kind: Literal["synthetic"]
    mean_gco2e_per_kwh: Positive = 207.13
    std_gco2e_per_kwh: Annotated[float, Field(ge=0)] = 69.23
    seed: int = 0
    step_s: Positive = 1800.0


class TraceSource(Section):
    """Replay of a CSV file: our own format or an Electricity Maps export."""

    kind: Literal["trace"]
    path: Path
    loop: bool = True


Source = Annotated[StaticSource | SyntheticSource | TraceSource, Field(discriminator="kind")]


class Zone(Section):
    """An electricity grid area.

    Attributes:
        source: Where its intensity comes from.
        signal: What the numbers mean. Average and marginal are never mixed.
        average_window_s: Window of the average carbon intensity (ACI), s.
    """

    source: Source
    signal: Literal["average", "marginal"] = "average"
    average_window_s: Positive = 86_400.0


class Replay(Section):
    """Grid time for replayed sources.

    Attributes:
        start: First instant, UTC. None: now (synthetic) or the trace's beginning.
        speedup: Grid seconds per second. 1440: a day in a minute.
    """

    start: datetime | None = None
    speedup: Positive = 1.0


class Carbon(Endpoint):
    """The carbon service."""

    listen: Address = "127.0.0.1:8461"
    zones: Annotated[dict[Name, Zone], Field(min_length=1)]
    replay: Replay = Replay()

"""From the zones' settings to their sources, and to the instant at which grid time starts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from services.carbon.domain import Sample
from services.carbon.sources.csv_file import read_trace
from services.carbon.sources.source import Source
from services.carbon.sources.static import StaticSource
from services.carbon.sources.synthetic import SyntheticSource
from services.carbon.sources.trace import TraceSource
from services.kit import deployment as settings


def build(carbon: settings.Carbon, now: datetime) -> tuple[datetime, dict[str, Source]]:
    """Read the traces; return when grid time starts and the source of each zone.

    Grid time starts where the settings say, else where all traces have begun, else now.

    Args:
        carbon: The service's settings.
        now: The machine's time, UTC.

    Raises:
        ConfigError: A trace file cannot be used.
    """
    traces = {
        name: read_trace(zone.source.path)
        for name, zone in carbon.zones.items()
        if isinstance(zone.source, settings.TraceSource)
    }
    start = _grid_start(carbon.replay.start, traces, now)
    sources = {
        name: _source(zone.source, traces.get(name, ()), start)
        for name, zone in sorted(carbon.zones.items())
    }
    return start, sources


def _grid_start(
    wanted: datetime | None, traces: Mapping[str, tuple[Sample, ...]], now: datetime
) -> datetime:
    if wanted is None:
        return max((trace[0].since for trace in traces.values()), default=now)
    return wanted.replace(tzinfo=UTC) if wanted.tzinfo is None else wanted.astimezone(UTC)


def _source(source: settings.Source, trace: tuple[Sample, ...], start: datetime) -> Source:
    match source:
        case settings.StaticSource():
            return StaticSource(source.intensity_gco2e_per_kwh, start)
        case settings.SyntheticSource():
            return SyntheticSource(
                source.mean_gco2e_per_kwh,
                source.std_gco2e_per_kwh,
                seed=source.seed,
                step=timedelta(seconds=source.step_s),
            )
        case settings.TraceSource():
            return TraceSource(f"trace:{source.path.name}", trace, loop=source.loop)

"""Creates the zones' sources, and finds the start of grid time."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from services.carbon.core.model import Sample, highest_plausible
from services.carbon.core.sources.chain import Assumption, Chain, ChainLink
from services.carbon.core.sources.day_gate import DayGate
from services.carbon.core.sources.feed import Feed
from services.carbon.core.sources.source import Source
from services.carbon.core.sources.synthetic import SyntheticSource
from services.carbon.core.sources.trace import TraceSource
from services.carbon.sources.csv_trace import read_trace
from services.kit.config import Carbon, Zone
from services.kit.config import carbon_sources as settings
from services.kit.config.loader import ConfigError, Mistake

Traces = Mapping[Path, tuple[Sample, ...]]

_LEEWAY = timedelta(days=1)


def build(carbon: Carbon, now: datetime) -> tuple[datetime, dict[str, Source]]:
    """Read the traces; return the start of grid time and the source of each zone.

    With a live zone grid time is the present; otherwise it starts as configured, or when all traces
    have begun, or now. The source of a live zone is a Chain, whose feeds are empty.

    Args:
        carbon: Settings of the service.
        now: The machine's time, UTC.

    Raises:
        ConfigError: A trace file cannot be used, or has ended before grid time starts.
    """
    traces = {
        source.path: read_trace(source.path)
        for zone in carbon.zones.values()
        for source in zone.sources
        if isinstance(source, settings.TraceSource)
    }
    start = now if _live(carbon) else _grid_start(carbon.replay.start, traces, now)
    _refuse_ended(carbon, traces, start)
    sources = {name: _of_zone(zone, traces, start) for name, zone in sorted(carbon.zones.items())}
    return start, sources


def _live(carbon: Carbon) -> bool:
    return any(zone.live for zone in carbon.zones.values())


def _grid_start(wanted: datetime | None, traces: Traces, now: datetime) -> datetime:
    if wanted is None:
        return max((trace[0].since for trace in traces.values()), default=now)
    return wanted.replace(tzinfo=UTC) if wanted.tzinfo is None else wanted.astimezone(UTC)


def _refuse_ended(carbon: Carbon, traces: Traces, start: datetime) -> None:
    """Check that no trace has ended: its last value would hold for ever."""
    for name, zone in carbon.zones.items():
        for source in zone.sources:
            if not isinstance(source, settings.TraceSource) or source.loop:
                continue
            end = traces[source.path][-1].since
            if end + _LEEWAY < start:
                text = (
                    f"zone {name}: the trace ends {end:%Y-%m-%d %H:%M} UTC, before grid time "
                    f"starts ({start:%Y-%m-%d %H:%M}); say loop: true to repeat it, or set "
                    "carbon.replay.start"
                )
                raise ConfigError(source.path, [Mistake("file", 0, text)])


def _of_zone(zone: Zone, traces: Traces, start: datetime) -> Source:
    if not zone.live:
        return _source(zone.sources[0], traces, start)
    *rest, last = zone.sources
    assumption = None
    if isinstance(last, settings.StaticSource):
        assumption = Assumption(last.intensity_gco2e_per_kwh, timedelta(seconds=zone.hold_s), start)
    else:
        rest.append(last)
    links = tuple(_link(each, zone, traces, start) for each in rest)
    return Chain(links, assumption, use_outlooks=zone.provider_forecast)


def _link(source: settings.Source, zone: Zone, traces: Traces, start: datetime) -> ChainLink:
    if isinstance(source, settings.LiveSource):
        gate = DayGate() if zone.signal == "average" else None
        feed = Feed(source.label, maximum=highest_plausible(zone.signal), gate=gate)
        return ChainLink(feed, timedelta(seconds=source.fresh_s))
    return ChainLink(_source(source, traces, start))


def _source(source: settings.Source, traces: Traces, start: datetime) -> Source:
    match source:
        case settings.StaticSource():
            known = (Sample(start, source.intensity_gco2e_per_kwh),)
            return TraceSource("static", known, loop=False)
        case settings.SyntheticSource():
            return SyntheticSource(
                source.mean_gco2e_per_kwh,
                source.std_gco2e_per_kwh,
                seed=source.seed,
                step=timedelta(seconds=source.step_s),
            )
        case settings.TraceSource():
            return TraceSource(f"trace:{source.path.name}", traces[source.path], loop=source.loop)
    raise TypeError(f"{source.kind} is live")

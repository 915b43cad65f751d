"""From settings to sources, and where grid time starts."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import httpx
import pytest

from services.carbon.sources.factory import build
from services.carbon.sources.live.factory import provider
from services.kit.config import Carbon, Replay, Zone
from services.kit.config.carbon_sources import (
    ElectricityMapsSource,
    StaticSource,
    SyntheticSource,
    TraceSource,
    WattTimeSource,
)
from services.kit.config.loader import ConfigError

NOW = datetime(2026, 11, 21, tzinfo=UTC)
MARCH = datetime(2022, 3, 1, tzinfo=UTC)
STATIC = StaticSource(kind="static", intensity_gco2e_per_kwh=1.0)
SYNTHETIC = SyntheticSource(kind="synthetic")


def carbon(
    *sources: StaticSource | SyntheticSource | TraceSource, start: datetime | None = None
) -> Carbon:
    """Return settings whose zones are called A, B, ... in the order of `sources`."""
    zones = {chr(ord("A") + index): Zone(source=source) for index, source in enumerate(sources)}
    return Carbon(zones=zones, replay=Replay(start=start))


@pytest.fixture
def traces(tmp_path: Path) -> list[TraceSource]:
    """One trace from 1 January 2022, one from 1 March."""
    found = []
    for month in (1, 3):
        path = tmp_path / f"{month}.csv"
        path.write_text(
            f"timestamp,carbon_intensity_gco2e_per_kwh\n2022-0{month}-01T00:00:00Z,{month}\n"
        )
        found.append(TraceSource(kind="trace", path=path))
    return found


def test_every_kind_of_source_is_built_in_alphabetical_order(traces: list[TraceSource]) -> None:
    _, sources = build(carbon(traces[0], SYNTHETIC, STATIC), NOW)

    assert [(zone, source.name) for zone, source in sources.items()] == [
        ("A", "trace:1.csv"), ("B", "synthetic"), ("C", "static"),
    ]  # fmt: skip


def test_grid_time_starts_now_where_nothing_is_replayed() -> None:
    start, sources = build(carbon(STATIC, SYNTHETIC), NOW)
    static = sources["A"].at(NOW)

    assert start == NOW
    assert static is not None
    assert static.since == NOW


def test_grid_time_starts_when_all_traces_have_begun(traces: list[TraceSource]) -> None:
    """A static zone beside the traces holds from that time, not from the wall clock's."""
    start, sources = build(carbon(*traces, STATIC), NOW)
    static = sources["C"].at(start)

    assert start == MARCH
    assert static is not None
    assert static.since == MARCH


@pytest.mark.parametrize(
    "wanted",
    [
        MARCH,
        MARCH.replace(tzinfo=None),
        MARCH.astimezone(timezone(timedelta(hours=5))),
    ],
    ids=["UTC", "without a zone", "elsewhere"],
)
def test_grid_time_starts_where_the_settings_say(
    traces: list[TraceSource], wanted: datetime
) -> None:
    """A time without a zone is UTC, as the settings promise, not this machine's local time."""
    start, _ = build(carbon(traces[0], start=wanted), NOW)

    assert start == MARCH
    assert start.tzinfo is UTC


def test_a_key_that_no_header_can_carry_is_refused_by_its_setting(tmp_path: Path) -> None:
    """A password of WattTime, which is encoded, may be any text."""
    key = tmp_path / "k"
    key.write_text("schlüssel")
    maps = ElectricityMapsSource(kind="electricity-maps", zone="DE", key_file=key)
    moer = WattTimeSource(kind="watttime", username="ada", region="PJM", key_file=key)
    with pytest.raises(ConfigError, match="key_file: must be printable ASCII"):
        provider(maps, httpx.AsyncClient())

    assert provider(moer, httpx.AsyncClient()) is not None

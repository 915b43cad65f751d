"""Trace files: the rows that are read, and mistakes with file, line and column."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from services.carbon.core.model import Sample
from services.carbon.sources.csv_trace import read_trace
from services.kit.config.loader import ConfigError
from tests.support.paths import PUBLISHED

START = datetime(2022, 1, 1, tzinfo=UTC)
OURS = "timestamp,carbon_intensity_gco2_per_kwh\n"
EXPORT = (
    "Datetime (UTC),Country,Zone Name,Zone Id,{direct},{life_cycle},Low Carbon Percentage\n"
    "2022-01-01 00:00:00,USA,CAISO,US-CAL-CISO,220.5,280.25,50\n"
    "2022-01-01 01:00:00,USA,CAISO,US-CAL-CISO,,,50\n"
    "2022-01-01 02:00:00,USA,CAISO,US-CAL-CISO,210.5,270.25,50\n"
)
TRACES = PUBLISHED / "carbon_intensity"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "zone.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("column", ["gco2_per_kwh", "gco2e_per_kwh"])
def test_our_format_is_read(tmp_path: Path, column: str) -> None:
    """Offsets become UTC, blank lines and other columns are skipped, a BOM does not hurt."""
    text = (
        f"\ufefftimestamp,note,carbon_intensity_{column}\n"
        "2022-01-01T00:00:00Z,x,1.5\n\n2022-01-01T02:00:00+01:00,,2\n"
    )

    assert read_trace(written(tmp_path, text)) == (
        Sample(START, 1.5),
        Sample(START + timedelta(hours=1), 2.0),
    )


@pytest.mark.parametrize(
    "spelling",
    [
        "Carbon Intensity gCO₂eq/kWh ({})",
        "Carbon intensity gCO₂eq/kWh ({})",
        "Carbon intensity gCO2eq/kWh ({})",
    ],
)
@pytest.mark.parametrize("life_cycle", ["LCA", "Life cycle"])
def test_electricity_maps_exports_of_every_year_are_read(
    tmp_path: Path, spelling: str, life_cycle: str
) -> None:
    """Life-cycle intensity is preferred to direct; an empty value is a gap."""
    text = EXPORT.format(direct=spelling.format("direct"), life_cycle=spelling.format(life_cycle))

    assert read_trace(written(tmp_path, text)) == (
        Sample(START, 280.25),
        Sample(START + timedelta(hours=2), 270.25),
    )


def test_an_export_with_direct_intensity_only_is_read(tmp_path: Path) -> None:
    text = EXPORT.format(direct="Carbon intensity gCO₂eq/kWh (direct)", life_cycle="Something")

    assert read_trace(written(tmp_path, text))[0] == Sample(START, 220.5)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "line 1: header: must name 'timestamp'"),
        ("when,what\n", "line 1: header: must name 'timestamp'"),
        (OURS, "line 1: file: has a header but no values"),
        (f"{OURS}yesterday,1\n", "line 2: timestamp: must be ISO 8601, got 'yesterday'"),
        (f"{OURS}2022-01-01T00:00:00,1\n", 'line 2: timestamp: must end in "Z" or an offset'),
        (
            f"{OURS}2022-01-01T00:00:00Z,-1\n",
            "line 2: carbon_intensity_gco2_per_kwh: must be a number within 0..5000, got '-1'",
        ),
        (f"{OURS}2022-01-01T00:00:00Z,2e5\n", "must be a number within 0..5000, got '2e5'"),
        (f"{OURS}2022-01-01T00:00:00Z,inf\n", "got 'inf'"),
        (f"{OURS}2022-01-01T00:00:00Z,nan\n", "line 2: carbon_intensity_gco2_per_kwh: must be"),
        (f"{OURS}2022-01-01T00:00:00Z,many\n", "got 'many'"),
        (f"{OURS}2022-01-01T00:00:00Z\n", "carbon_intensity_gco2_per_kwh: missing: the row ends"),
        (
            f"{OURS}2022-01-01T00:00:00Z,1\n\n2022-01-01T00:00:00Z,2\n",
            "line 4: timestamp: must be later than the row before",
        ),
        (
            f"{OURS}2022-01-02T00:00:00Z,1\n2022-01-01T00:00:00Z,2\n",
            "line 3: timestamp: must be later than the row before",
        ),
    ],
    ids=[
        "empty", "other columns", "no rows", "no time", "no offset", "negative", "absurd",
        "infinite", "not finite", "no number", "short row", "duplicate", "unsorted",
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_file_line_and_column(
    tmp_path: Path, text: str, mistake: str
) -> None:
    path = written(tmp_path, text)

    with pytest.raises(ConfigError) as caught:
        read_trace(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert mistake in str(caught.value)


@pytest.mark.parametrize(
    "rows",
    [
        ("2022-03-27T01:00+01:00", "2022-03-27T03:00+02:00", "2022-03-27T04:00+02:00"),
        ("2022-10-30T02:00+02:00", "2022-10-30T02:00+01:00", "2022-10-30T03:00+01:00"),
    ],
    ids=["spring", "autumn"],
)
def test_local_times_over_a_change_of_clocks_are_hours_without_gap_or_double(
    tmp_path: Path, rows: tuple[str, ...]
) -> None:
    """The hour that spring skips never was, and autumn's second is another one."""
    lines = "".join(f"{row},{value}\n" for value, row in enumerate(rows))
    read = read_trace(written(tmp_path, OURS + lines))

    assert [later.since - earlier.since for earlier, later in pairwise(read)] == [
        timedelta(hours=1)
    ] * 2


def test_a_missing_file_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.csv: file: cannot be read"):
        read_trace(tmp_path / "absent.csv")


@pytest.mark.skipif(not TRACES.exists(), reason="the recorded traces are not in this checkout")
@pytest.mark.parametrize("zone", ["US-CAL-CISO", "AU-NSW", "GB"])
def test_two_recorded_years_are_read_whole(zone: str) -> None:
    trace = read_trace(TRACES / "lca" / f"{zone}.csv")

    assert len(trace) == 17_520
    assert trace[-1].since - trace[0].since == timedelta(hours=17_519)

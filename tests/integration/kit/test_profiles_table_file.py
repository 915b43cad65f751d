"""Tables that the profiler writes, and the clocks in them."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import InvalidArgument
from services.kit.hardware.gpu_types import curve_of, load
from services.kit.profiles.core.measurement import Fingerprint, Measurement
from services.kit.profiles.core.profile import BatchCost, SliceShape
from services.kit.profiles.table import TableProfile
from services.kit.profiles.table_file import read_fingerprint, read_measurements, write_table

MACHINE = Fingerprint(
    "a100-40gb", "NVIDIA A100: 40 # GB", "580.95.05", "13.0", "1.31.0", measured_on="2026-11-21"
)
SHAPE = SliceShape(
    "a100-40gb", "2g.10gb", 2, 28, 108, 10 * 2**30, 55.0, 400.0, load("a100-40gb").performance
)


def point(batch_size: int, clock_ratio: float, latency_s: float, energy_j: float) -> Measurement:
    return Measurement(
        gpu="a100-40gb",
        profile="2g.10gb",
        batch_size=batch_size,
        processes=1,
        clock_mhz=0 if clock_ratio == 1 else round(1410 * clock_ratio),
        clock_ratio=clock_ratio,
        latency_s=latency_s,
        latency_p50_s=latency_s,
        latency_p95_s=latency_s * 1.1,
        latency_std_s=latency_s * 0.01,
        throughput_rps=batch_size / latency_s,
        energy_j=energy_j,
        energy_method="counter",
        batches=100,
    )


POINTS = (
    point(1, 0.5, 0.040, 0.6),
    point(1, 1.0, 0.020, 0.8),
    point(4, 0.5, 0.100, 1.5),
    point(4, 1.0, 0.050, 2.0),
    replace(point(8, 1.0, 0.0001, 1.0), latency_s=0.0, energy_j=0.0, reason='no "memory", at all'),
)


@pytest.fixture(params=["csv", "parquet"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The points on disk, in either form."""
    path = tmp_path / "new" / f"table.{request.param}"
    write_table(path, MACHINE, POINTS)
    return path


def profile(table: Path) -> TableProfile:
    return TableProfile.read(table, gpu="another", gmacs_per_item=1.0)


def test_what_is_written_is_read_back_with_its_machine(table: Path) -> None:
    """Rows, fingerprint, quotes and hashes included; nothing else is left in the folder."""
    assert read_measurements(table) == POINTS
    assert read_fingerprint(table) == MACHINE
    assert list(table.parent.iterdir()) == [table]


def test_a_byte_order_mark_is_no_part_of_a_table(tmp_path: Path) -> None:
    """Spreadsheets write one."""
    table = tmp_path / "table.csv"
    write_table(table, MACHINE, POINTS)
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())

    assert read_fingerprint(table) == MACHINE
    assert read_measurements(table) == POINTS


@pytest.mark.parametrize("latency", ["nan", "inf", "1_000", "-1"])
def test_what_is_no_latency_is_refused_with_its_row(tmp_path: Path, latency: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"profile,batch_size,processes,latency_s\n1g.5gb,1,1,{latency}\n")

    with pytest.raises(InvalidArgument, match="row 2: latency"):
        TableProfile.read(table, gpu="a100-40gb", gmacs_per_item=1.0)


def test_the_planner_reads_what_the_profiler_wrote(table: Path) -> None:
    found = profile(table)
    assert found.batch(SHAPE, 4, 1) == BatchCost(0.050, 2.0)
    assert found.batch(SHAPE, 4, 1, clock_ratio=0.5) == BatchCost(0.100, 1.5)
    assert found.batch(SHAPE, 8, 1) is None


def test_between_two_measured_clocks_costs_lie_on_a_line(table: Path) -> None:
    found = profile(table).batch(SHAPE, 1, 1, clock_ratio=0.75)
    assert found is not None
    assert (found.latency_s, found.energy_j) == pytest.approx((0.030, 0.7))


def test_below_the_lowest_measured_clock_the_worst_is_assumed(table: Path) -> None:
    found = profile(table).batch(SHAPE, 1, 1, clock_ratio=0.25)
    assert found is not None
    curve = curve_of(SHAPE.performance)
    stretch = curve.time_ratio(0.25) / curve.time_ratio(0.5)
    assert found.latency_s == pytest.approx(0.040 * stretch)
    assert found.energy_j == pytest.approx(
        0.6 * stretch * curve.power_ratio(0.25) / curve.power_ratio(0.5)
    )


def test_a_clock_above_every_measured_one_has_no_cost(tmp_path: Path) -> None:
    """A lower clock says nothing certain of a higher one."""
    write_table(tmp_path / "low.csv", MACHINE, POINTS[:1])
    found = profile(tmp_path / "low.csv")
    assert found.batch(SHAPE, 1, 1, clock_ratio=0.5) is not None
    assert found.batch(SHAPE, 1, 1) is None


@given(ratio=st.floats(0.5, 1.0), batch_size=st.integers(1, 4))
def test_every_point_inside_lies_between_its_corners(
    tmp_path_factory: pytest.TempPathFactory, ratio: float, batch_size: int
) -> None:
    """Whatever clock and batch size: between the least and the greatest measured around it."""
    path = tmp_path_factory.getbasetemp() / "corners.csv"
    if not path.exists():
        write_table(path, MACHINE, POINTS)
    found = profile(path).batch(SHAPE, batch_size, 1, clock_ratio=ratio)
    assert found is not None
    assert 0.020 <= found.latency_s <= 0.100
    assert 0.6 <= found.energy_j <= 2.0


def test_a_table_of_another_format_says_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("profile,batch_size,processes,latency_s\n1g.5gb,1,1,0.1\n")
    with pytest.raises(InvalidArgument, match=r"short\.csv: the columns gpu, clock_mhz"):
        read_measurements(path)
    assert read_fingerprint(path) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("profile,batch_size,processes,latency_s\n1g.5gb,1,1\n", "row 2: must have one field"),
        ("profile,batch_size,processes,latency_s\n1g.5gb,1,1,0.1,9\n", "row 2: must have one"),
        ("profile,batch_size,processes,latency_s\n", "the table has no row"),
        ("", "the table has no row"),
    ],
)
def test_a_table_whose_rows_and_header_differ_is_refused(
    tmp_path: Path, text: str, sentence: str
) -> None:
    """A field too few or too many, and a table without rows."""
    path = tmp_path / "short.csv"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=sentence):
        profile(path)


def test_parquet_without_polars_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images of a service have no Polars unless they are built with it."""
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InvalidArgument, match="Polars, which is not installed here: convert"):
        profile(tmp_path / "table.parquet")


def test_a_clock_ratio_that_cannot_be_is_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text("profile,batch_size,processes,latency_s,clock_ratio\n1g.5gb,1,1,0.1,1.5\n")
    with pytest.raises(InvalidArgument, match=r"row 2: clock_ratio must be in \(0, 1\], got 1.5"):
        profile(path)

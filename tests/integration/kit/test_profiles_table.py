"""Measured tables: ParvaGPU's own files, and our format."""

import csv
from pathlib import Path

import polars as pl
import pytest

from services.kit.config import AnalyticProfile as AnalyticSettings
from services.kit.config import TableProfile as TableSettings
from services.kit.errors import InvalidArgument
from services.kit.hardware.gpu_types import load
from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.core.profile import SliceShape
from services.kit.profiles.factory import load_profile
from services.kit.profiles.table import TableProfile
from tests.support.paths import MADE_UP, PUBLISHED

PROFILES = [
    pytest.param(
        folder,
        id=name,
        marks=pytest.mark.skipif(not folder.is_dir(), reason="no ParvaGPU tables beside the clone"),
    )
    for name, folder in (
        ("made up", MADE_UP / "parvagpu/prof_data"),
        ("published", PUBLISHED / "parvagpu/prof_data"),
    )
]


A100 = load("a100-80gb").performance


def shape(gpcs: int, profile: str, gpu: str = "a100-80gb") -> SliceShape:
    return SliceShape(gpu, profile, gpcs, 14 * gpcs, 108, gpcs * 10 * 2**30, 55.0, 400.0, A100)


@pytest.mark.parametrize("folder", PROFILES)
def test_every_point_of_a_table_in_parvagpus_format_comes_back(folder: Path) -> None:
    """Every model, GPC count, batch size and process count; 0,0 rows have no cost."""
    paths = sorted(folder.glob("*.csv"))
    assert paths
    for path in paths:
        profile = TableProfile.read(path, gpu="a100-80gb", gmacs_per_item=5.7)
        with path.open() as lines:
            for row in csv.DictReader(lines):
                where = shape(int(row["Mig instance"]), "any")
                batch_size, processes = int(row["Batch size"]), int(row["Workload Number"])
                found = profile.batch(where, batch_size, processes)
                per_process_rps = float(row["Throughput"])
                if per_process_rps == 0:
                    assert found is None
                else:
                    assert found is not None
                    assert batch_size / found.latency_s == pytest.approx(per_process_rps)
                    assert found.latency_s == pytest.approx(float(row["Latency"]), abs=2e-3)


@pytest.mark.parametrize("folder", PROFILES)
def test_power_of_a_measured_table_stays_within_the_slice(folder: Path) -> None:
    path = min(folder.glob("*.csv"))
    profile = TableProfile.read(path, gpu="a100-80gb", gmacs_per_item=5.7)
    found = profile.batch(shape(1, "1g.10gb"), 8, 2)
    assert found is not None
    assert 0 < 2 * found.power_w <= 14 / 108 * (400 - 55)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A table in our format, with one point that did not run."""
    path = tmp_path / "table.csv"
    path.write_text(
        "profile,batch_size,processes,latency_s,energy_j\n"
        "1g.10gb,1,1,0.010,0.20\n"
        "1g.10gb,4,1,0.016,0.50\n"
        "1g.10gb,8,1,0,0\n"
    )
    return path


def test_partial_batches_lie_between_measured_ones(ours: Path) -> None:
    """Latency and energy on the line between the neighbours; nothing beyond the last that ran."""
    profile = TableProfile.read(ours, gpu="a100-80gb", gmacs_per_item=1.0)
    where = shape(1, "1g.10gb")
    half = profile.batch(where, 2, 1)
    assert half is not None
    assert (half.latency_s, half.energy_j) == pytest.approx((0.012, 0.30))
    assert profile.batch(where, 4, 1) is not None
    assert profile.batch(where, 5, 1) is None
    assert profile.batch(where, 8, 1) is None
    assert profile.batch(where, 9, 1) is None


def test_only_what_was_measured_answers(ours: Path) -> None:
    """Another GPU, another slice, another process count: no cost."""
    profile = TableProfile.read(ours, gpu="a100-80gb", gmacs_per_item=1.0)
    assert profile.batch(shape(1, "1g.10gb", gpu="h100-80gb"), 1, 1) is None
    assert profile.batch(shape(2, "2g.20gb"), 1, 1) is None
    assert profile.batch(shape(1, "1g.10gb"), 1, 2) is None


def test_parquet_says_the_same_as_csv(ours: Path, tmp_path: Path) -> None:
    parquet = tmp_path / "table.parquet"
    pl.read_csv(ours).write_parquet(parquet)
    where = shape(1, "1g.10gb")
    one, other = (
        TableProfile.read(path, gpu="a100-80gb", gmacs_per_item=1.0) for path in (ours, parquet)
    )
    assert one.batch(where, 3, 1) == other.batch(where, 3, 1)


def test_a_lower_clock_stretches_measured_latency(ours: Path) -> None:
    profile = TableProfile.read(ours, gpu="a100-80gb", gmacs_per_item=1.0)
    where = shape(1, "1g.10gb")
    fast, slow = (profile.batch(where, 1, 1, clock_ratio=ratio) for ratio in (1.0, 0.7))
    assert fast is not None
    assert slow is not None
    assert slow.latency_s > fast.latency_s
    assert slow.energy_j < fast.energy_j


@pytest.mark.parametrize(
    "text",
    [
        "batch,latency\n1,2\n",
        "profile,batch_size,processes,latency_s\n1g.10gb,0,1,0.1\n",
        "profile,batch_size,processes,latency_s\n1g.10gb,1,1,-0.1\n",
        "profile,batch_size,processes,latency_s\n1g.10gb,one,1,0.1\n",
        "profile,batch_size,processes,latency_s\n1g.10gb,1,1,NaN\n",
        "profile,batch_size,processes,latency_s\n1g.10gb,1,1,inf\n",
        "profile,batch_size,processes,latency_s\n1g.10gb,,1,0.1\n",
        "",
    ],
    ids=[
        "columns",
        "batch size 0",
        "negative latency",
        "not a number",
        "NaN",
        "inf",
        "gap",
        "empty",
    ],
)
def test_a_wrong_table_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"wrong\.csv") as caught:
        TableProfile.read(path, gpu="a100-80gb", gmacs_per_item=1.0)
    assert caught.value.field == "profile.path"


def test_a_wrong_number_is_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(
        "Mig instance,Batch size,Workload Number,Throughput,Latency\n1,1,1,0,0\n1,2,1,NaN,0.01\n"
    )
    with pytest.raises(InvalidArgument, match=r"row 3: latency \(or throughput\).* got nan"):
        TableProfile.read(path, gpu="a100-80gb", gmacs_per_item=1.0)


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"absent\.csv"):
        TableProfile.read(tmp_path / "absent.csv", gpu="a100-80gb", gmacs_per_item=1.0)


def test_settings_choose_the_profile(ours: Path) -> None:
    """Each kind of settings loads its own profile, with the parameters it names."""
    analytic = load_profile(AnalyticSettings(kind="analytic", gmacs_per_item=2.0, memory_mib=77))
    assert analytic == AnalyticProfile(2.0, memory_mib=77)
    assert analytic.method == "model"
    table = load_profile(
        TableSettings(kind="table", path=ours, gpu="a100-80gb", gmacs_per_item=1.0)
    )
    assert table.method == "table"
    assert table.batch(shape(1, "1g.10gb"), 1, 1) is not None

"""`cinquefoil plan solve`: capacity from files, as a table and as JSON."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.cli.main import app

SPEED_RPS = {"1g.10gb": 100.0, "2g.20gb": 220.0, "3g.40gb": 340.0, "7g.80gb": 700.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Profiles in our format, services in both."""
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    for model, speed in {"fast": 2.0, "slow": 1.0}.items():
        rows = [f"{name},8,1,{8 / rps / speed}" for name, rps in SPEED_RPS.items()]
        text = "\n".join(["profile,batch_size,processes,latency_s", *rows, "1g.10gb,8,2,0"])
        (profiles / f"{model}.csv").write_text(text)
    (tmp_path / "services.csv").write_text("model,rate_rps,latency_s\nfast,500,0.2\nslow,900,0.2\n")
    (tmp_path / "rates.csv").write_text("500,900\n500,N/A")
    (tmp_path / "latencies.csv").write_text("200,200\n200,N/A")
    return tmp_path


def solve(folder: Path, *options: str) -> Result:
    command = ["plan", "solve", "--profiles", str(folder / "profiles"), *options]
    return CliRunner().invoke(app, command)


def ours(folder: Path, *options: str) -> Result:
    return solve(folder, "--services", str(folder / "services.csv"), *options)


def theirs(folder: Path, *options: str) -> Result:
    rates, latencies = str(folder / "rates.csv"), str(folder / "latencies.csv")
    return solve(folder, "--rates", rates, "--latencies", latencies, *options)


@pytest.mark.parametrize("strategy", ["exact", "parvagpu"])
def test_json_has_gpus_layouts_segments_shares_gap_and_time(folder: Path, strategy: str) -> None:
    """500 req/s take one segment of 3 GPCs, 900 take 8 GPCs: two GPUs."""
    result = ours(folder, "--strategy", strategy, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert (found["strategy"], found["gpu"], found["gpus"]) == (strategy, "a100-80gb", 2)
    assert found["gap"] == (0.0 if strategy == "exact" else None)
    assert found["ms"] > 0
    assert found["unserved_rps"] == {}
    assert found["unallocated_pct"] == pytest.approx(100 * (1 - found["gpcs"] / 14))
    assert len(found["layouts"]) == 2
    slices = [f"{each['slice']}@{each['start']}" for each in found["segments"]]
    assert sorted(slices) == sorted(s for each in found["layouts"] for s in each["slices"])
    for model, rate_rps in {"fast": 500.0, "slow": 900.0}.items():
        own = [each for each in found["segments"] if each["model"] == model]
        assert sum(each["share"] for each in own) == pytest.approx(1.0)
        assert sum(each["throughput_rps"] for each in own) >= rate_rps
        assert all(each["latency_s"] <= 0.1 for each in own)


def test_both_formats_say_the_same(folder: Path) -> None:
    plans = [json.loads(read(folder, "--json").output) | {"ms": None} for read in (ours, theirs)]
    assert plans[0] == plans[1]


def test_the_table_shows_the_plan(folder: Path) -> None:
    result = theirs(folder, "--scenario", "2")
    assert result.exit_code == 0
    for words in ("1 x a100-80gb", "gap 0.0 %", "Layouts", "3g.40gb@", "Segments", "100.0 %"):
        assert words in result.output
    assert "slow" not in result.output


def test_too_few_gpus_are_said_and_are_a_failure(folder: Path) -> None:
    result = ours(folder, "--gpus", "1", "--strategy", "parvagpu")
    assert result.exit_code == 1
    assert "1 x a100-80gb" in result.output
    assert "Not served, req/s: " in result.output


def test_the_options_are_the_plan_s_terms(folder: Path) -> None:
    """A batch of 8 takes 80 ms on the smallest slice: too long for a share of 0.3."""
    found = json.loads(ours(folder, "--latency-share", "0.3", "--json").output)
    assert all(each["latency_s"] <= 0.06 for each in found["segments"])
    half = json.loads(ours(folder, "--max-utilisation", "0.5", "--json").output)
    assert sum(each["throughput_rps"] for each in half["segments"]) >= 2 * 1400
    gpcs = json.loads(ours(folder, "--objective", "infadapter", "--json").output)
    assert gpcs["gpcs"] == 11


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scenario", "3"], "rates.csv: no scenario 3; there are 1 to 2"),
        (["--gpu", "b17"], "no GPU type 'b17'; there are a10-24gb, a100-40gb"),
        (["--gpu", "t4"], "fast: no row of its profile ran on a slice of t4"),
        (["--strategy", "magic"], "no strategy 'magic'; there are annealing"),
        (["--latency-share", "0.02"], "fast: no segment keeps 0.02 x 200 ms; the fastest"),
        (["--rates", "absent.csv"], "absent.csv"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_a_failure(
    folder: Path, options: list[str], message: str
) -> None:
    result = theirs(folder, *options)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_nan_in_a_profile_is_named_with_its_row(folder: Path) -> None:
    table = folder / "profiles" / "slow.csv"
    table.write_text(table.read_text() + "\n1g.10gb,16,1,NaN\n")
    result = ours(folder)
    assert result.exit_code == 1
    assert "slow.csv: row 7: latency" in result.output


@pytest.mark.parametrize(
    "given",
    [(), ("rates",), ("latencies",), ("services", "rates"), ("services", "rates", "latencies")],
    ids=" ".join,
)
def test_services_come_from_one_format(folder: Path, given: tuple[str, ...]) -> None:
    options = (word for name in given for word in (f"--{name}", str(folder / f"{name}.csv")))
    result = solve(folder, *options)
    assert result.exit_code == 2
    assert "--services" in result.output

"""`cinquefoil history`, over real gRPC."""

import csv
import json
from pathlib import Path

import pytest

from tests.support.cli.fake_services import cinquefoil, suite


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "cinquefoil.yaml"


async def test_the_table_has_a_line_per_series_and_the_last_plan_in_a_sentence(
    config: Path,
) -> None:
    async with suite(config):
        ended = await cinquefoil("history", "-c", config, "--hours", "1")

    assert ended.status == 0
    for said in ("power W", "BASE W", "100", "150", "digits req/s", "Plan 7 at "):
        assert said in ended.out
    assert "Saved today (UTC):" in ended.out


async def test_json_is_the_consoles_and_csv_has_a_row_for_each_time(config: Path) -> None:
    """The gap between two points is null in one, and empty in the other."""
    async with suite(config):
        as_json = await cinquefoil("history", "-c", config, "--hours", "1", "--json")
        as_csv = await cinquefoil("history", "-c", config, "--hours", "1", "--csv")

    found = json.loads(as_json.out)
    rows = list(csv.DictReader(as_csv.out.splitlines()))
    assert found["step_s"] == 600
    assert len(rows) == len(found["times_s"]) == len(found["power"]["measured_w"])
    assert found["power"]["measured_w"][-4:] == [100.0, None, 100.0, None]
    assert found["models"][0]["requests_rps"][-4:] == [10.0, None, 10.0, None]
    assert [row["measured_w"] for row in rows[-4:]] == ["100.0", "", "100.0", ""]
    assert found["plans"][-1]["slices"][0]["accuracy"] == 0.9917


async def test_what_cannot_be_shown_is_refused_in_a_sentence(config: Path) -> None:
    async with suite(config):
        unknown = await cinquefoil("history", "-c", config, "--model", "cats")
        both = await cinquefoil("history", "-c", config, "--json", "--csv")
        odd = await cinquefoil("history", "-c", config, "--step", "often")

    assert "there is no model 'cats'; there are: digits" in unknown.err
    assert "one of --json and --csv" in both.err
    assert "write 90s, 30m, 12h, 7d or 2w" in odd.err
    assert 0 not in (unknown.status, both.status, odd.status)

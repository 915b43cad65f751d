"""`cinquefoil carbon report`, over real gRPC."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from services.cli.account import show_account
from services.kit.errors import Unavailable
from tests.support.cli.fake_services import suite


def week() -> tuple[datetime, datetime]:
    now = datetime.now(UTC)
    return now - timedelta(days=7), now


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the command's output, without the log lines of the services, which run here, too."""
    lines = capsys.readouterr().out.splitlines()
    return "\n".join(line for line in lines if "component=" not in line)


@pytest.mark.may_block  # a command draws its chart in a process of its own
async def test_the_report_is_printed_as_requested_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "cinquefoil.yaml"
    page = tmp_path / "carbon.html"
    async with suite(config):
        await show_account(config, week(), "model", "table", page)
        table = printed(capsys)
        await show_account(config, week(), "all", "csv")
        lines = printed(capsys).splitlines()
        await show_account(config, week(), "model", "json")
        document = json.loads(printed(capsys))

    assert "digits" in table
    assert "(idle)" in table
    assert lines[0].startswith("hour,zone,node,model,energy_j,")
    assert len(lines) == 3
    assert [row["name"] for row in document["rows"]] == ["digits", "(idle)", "(other)", "total"]
    assert document["rows"][-1]["energy_j"] == 1500.0
    assert page.read_text().startswith("<!doctype html>")


async def test_a_planner_that_is_away_is_said_in_a_sentence(tmp_path: Path) -> None:
    config = tmp_path / "cinquefoil.yaml"
    async with suite(config, without="planner"):
        with pytest.raises(Unavailable, match=r"planner at .* does not answer"):
            await show_account(config, week(), "model")

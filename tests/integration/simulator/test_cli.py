"""`cinquefoil simulate`: what it prints, and what it writes."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from services.cli.main import app
from tests.support.scenarios import SMALL, merged

Write = Callable[[Mapping[str, Any]], Path]


def simulate(*arguments: object) -> tuple[int, str, str]:
    """Run the command; return exit status, output and complaints."""
    result = CliRunner().invoke(app, ["simulate", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two policies over a few seconds."""
    path = tmp_path_factory.mktemp("scenario") / "scenario.yaml"
    path.write_text(
        yaml.safe_dump(merged(SMALL, {"policies": ["base", "exact"], "duration_s": 20}))
    )
    return path


@pytest.fixture(scope="module")
def simulated(scenario: Path) -> tuple[Path, str]:
    """Simulate it; return the folder that was written, and what was printed."""
    out = scenario.parent / "out"
    status, output, _ = simulate(scenario, "--out", out, "--processes", 1)
    assert status == 0
    return out, output


def test_policies_side_by_side_give_the_figures_of_one_after_the_other(
    simulated: tuple[Path, str], scenario: Path, tmp_path: Path
) -> None:
    """Two processes, the same report to the last digit."""
    status, output, _ = simulate(scenario, "--out", tmp_path, "--processes", 2, "--json")

    assert status == 0
    assert output == (simulated[0] / "report.json").read_text()


def test_a_table_is_printed_and_everything_is_written(simulated: tuple[Path, str]) -> None:
    out, output = simulated

    for word in (
        "base",
        "exact",
        "requests sent",
        "latency p95",
        "carbon",
        "Savings are against base",
    ):
        assert word in output
    assert {path.name for path in out.iterdir()} == {"report.json", "report.html"}


def test_the_page_has_what_the_report_has_and_needs_nothing_else(
    simulated: tuple[Path, str],
) -> None:
    page = (simulated[0] / "report.html").read_text()

    assert not re.search(r"(src|href)=", page.split("<style>")[0] + page.split("</script>")[-1])
    (found,) = re.findall(r'<script type="application/json" id="report">(.*)</script>', page)
    report = json.loads(found)
    assert "for the same requests; every objective was met. With base," in report["headline"]
    captions = [part["caption"] for part in report["parts"]]
    assert captions[:4] == [
        "Figures",
        "Carbon intensity of the grid",
        "Load",
        "Emissions of all GPUs, PUE included",
    ]
    assert "first plan: 1 node, 1 GPU" in report["parts"][-1]["rows"][0]


def test_json_is_all_that_is_printed_and_the_same_twice(scenario: Path, tmp_path: Path) -> None:
    arguments = (scenario, "--out", tmp_path, "--json", "--seed", 3, "--strategy", "exact")

    status, output, _ = simulate(*arguments)

    assert status == 0
    document = json.loads(output)
    assert document["seed"] == 3
    assert list(document["results"]) == ["exact"]
    figures = document["results"]["exact"]["figures"]
    assert figures["energy_j"] == pytest.approx(figures["idle_j"] + figures["active_j"])
    assert (tmp_path / "report.json").read_text() == output
    assert simulate(*arguments)[1] == output


@pytest.mark.parametrize(
    ("changes", "arguments", "status", "message"),
    [
        ({"durations": 1}, (), 2, "durations: unknown key"),
        ({}, ("--strategy", "best"), 1, "no policy or strategy 'best'"),
        ({}, ("--detail", "some"), 2, "--detail"),
        ({}, ("--out", "/dev/null"), 1, "/dev/null: File exists"),
    ],
)
def test_a_mistake_is_reported_in_a_sentence(
    write: Write, changes: Mapping[str, Any], arguments: tuple[str, ...], status: int, message: str
) -> None:
    found, _, complaints = simulate(write(changes), *arguments)

    assert found == status
    assert message in complaints
    assert "Traceback" not in complaints


def test_lost_requests_have_a_reason_in_the_table(tmp_path: Path) -> None:
    """Promises that plans could not keep are beside the figures, not only in report.json."""
    path = tmp_path / "scenario.yaml"
    changes = {"deployment": {"models": {"m": {"demand_rps": 9000}}}, "duration_s": 10}
    path.write_text(yaml.safe_dump(merged(SMALL, changes)))

    status, output, _ = simulate(path, "--out", tmp_path / "out", "--processes", 1)

    assert status == 0
    assert re.search(r"base: [0-9,]+ lost, since m: .* 1 GPU is too few", " ".join(output.split()))

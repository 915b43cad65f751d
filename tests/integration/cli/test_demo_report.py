"""The demo's figures follow from what was counted and metered, and from nothing else."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cinquefoil.planner.v1.plan_pb2 import Plan
from services.cli.demo import report
from services.cli.demo.sample import Sample
from services.local.demo.load import RequestStats
from tests.support.cli.demo_days import MIDNIGHT

START = Sample(
    at=MIDNIGHT,
    seconds=0.0,
    plan=3,
    shares={},
    slices={},
    power_w=0.0,
    energy_j=1000.0,
    carbon_gco2e=0.5,
    gpu_energy_j={"GPU-1": 600.0, "GPU-2": 400.0},
)
END = replace(
    START, energy_j=1400.0, carbon_gco2e=0.9, gpu_energy_j={"GPU-1": 1000.0, "GPU-2": 400.0}
)


def counted() -> RequestStats:
    """Five sent: three right, one wrong, one lost."""
    stats = RequestStats(sent=5)
    for latency_s, correct in ((0.1, True), (0.1, True), (0.2, True), (0.2, False)):
        stats.answer(latency_s, correct=correct)
    stats.lose("UNAVAILABLE: gone")
    return stats


def test_energy_and_carbon_are_differences_of_the_accounts_per_answer() -> None:
    found = report.figures(counted(), START, END, [], 0.2)
    assert found.energy_j_per_request == pytest.approx(400 / 4)
    assert found.carbon_gco2e_per_request == pytest.approx(0.4 / 4)


def test_requests_and_accuracy_are_counted() -> None:
    found = report.figures(counted(), START, END, [], 0.2)
    assert (found.sent, found.answered, found.lost) == (5, 4, 1)
    assert found.accuracy == pytest.approx(3 / 4)
    assert found.p50_ms == pytest.approx(150)
    assert found.slo_ms == 200


def test_a_request_without_any_end_is_lost() -> None:
    stats = counted()
    stats.sent += 1
    assert report.figures(stats, START, END, [], 0.2).lost == 2


def test_only_gpus_that_drew_energy_are_powered() -> None:
    assert report.figures(counted(), START, END, [], 0.2).gpus == 1


def test_the_plan_in_force_at_the_start_is_no_reconfiguration() -> None:
    plans = [Plan(version=5, steps=0), Plan(version=4, steps=6, slice_changes=2)]
    found = report.figures(counted(), START, END, [*plans, Plan(version=3, steps=9)], 0.2)
    assert (found.plans, found.reconfigurations) == (3, 1)


def test_report_json_has_exactly_the_promised_fields(tmp_path: Path) -> None:
    one = report.figures(counted(), START, END, [], 0.2)
    report.write(tmp_path / "report.json", {"base": one, "cinquefoil": one})
    document = json.loads((tmp_path / "report.json").read_text())
    fields = (
        "sent answered lost p50_ms p95_ms slo_ms accuracy energy_j_per_request "
        "carbon_gco2e_per_request gpus plans reconfigurations"
    )
    assert list(document) == ["base", "cinquefoil"]
    assert list(document["base"]) == fields.split()


def test_the_table_says_what_was_saved() -> None:
    base = report.figures(counted(), START, END, [], 0.2)
    better = replace(base, carbon_gco2e_per_request=base.carbon_gco2e_per_request / 2)
    console = Console(file=StringIO(), width=120)
    console.print(report.render(base, better))
    text = console.file.getvalue()  # type: ignore[attr-defined] # a StringIO of this test's own
    assert "saved 50.0 % of the carbon and 0.0 % of the energy" in text
    assert "5 / 4 / 1" in text


def test_the_headline_names_the_price_beside_the_gain() -> None:
    base = report.figures(counted(), START, END, [], 0.2)
    better = replace(base, accuracy=base.accuracy - 0.01, p95_ms=190.0, lost=0)
    later = 190.0 - base.p95_ms
    text = report.headline(base, better)

    assert f"The price: -1.00 points of accuracy and {later:+.0f} ms at p95" in text
    assert text.endswith("(190 ms, within the objective of 200 ms); no request was lost.")


def test_nothing_against_nothing_saves_nothing() -> None:
    assert report.saving(0.0, 0.0) == 0.0

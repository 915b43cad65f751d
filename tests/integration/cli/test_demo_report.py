"""The demo's figures follow from what was counted and metered, and from nothing else."""

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cinquefoil.planner.v1.plan_pb2 import Plan
from services.cli.demo import report
from services.cli.demo.report import Figures
from services.cli.demo.sample import GpuSample, Sample
from services.kit.config.loader import load
from services.local.demo.load import RequestStats
from tests.support.cli.demo_days import MIDNIGHT
from tests.support.paths import ROOT

MODELS = load(ROOT / "cinquefoil.yaml").models
START = Sample(
    at=MIDNIGHT,
    seconds=0.0,
    plan=3,
    gpus=(GpuSample("node-0/0", 7, (), 50.0), GpuSample("node-0/1", 7, (), 50.0)),
    power_w=0.0,
    energy_j=1000.0,
    carbon_gco2e=0.5,
)
END = replace(START, seconds=2.0, energy_j=1400.0, carbon_gco2e=0.9)


def counted() -> dict[str, RequestStats]:
    """Five sent: three right, one wrong, one lost."""
    stats = RequestStats(sent=5)
    for latency_s, correct in ((0.1, True), (0.1, True), (0.2, True), (0.2, False)):
        stats.answer(latency_s, correct=correct)
    stats.lose("UNAVAILABLE: gone")
    return {"digits": stats}


def figures(stats: dict[str, RequestStats] | None = None, plans: Sequence[Plan] = ()) -> Figures:
    """A suite's figures of `counted`."""
    return report.figures(stats or counted(), [START, END], plans, MODELS)


def compared() -> tuple[Figures, Figures]:
    """BASE on two GPUs, and Cinquefoil on one: half the energy and carbon, and less accurate."""
    base = replace(figures(), lost=0)
    half = base.energy_j_per_request / 2
    better = replace(
        base,
        energy_j_per_request=half,
        carbon_gco2e_per_request=base.carbon_gco2e_per_request / 2,
        accuracy=base.accuracy - 0.01,
        gpus=1,
    )
    return base, better


def test_energy_and_carbon_are_differences_of_the_accounts_per_answer() -> None:
    assert figures().energy_j_per_request == pytest.approx(400 / 4)
    assert figures().carbon_gco2e_per_request == pytest.approx(0.4 / 4)
    assert figures().idle_j_per_request == pytest.approx(50 * 2 / 4)


def test_requests_and_accuracy_are_counted_for_each_model() -> None:
    found = figures()
    model = found.models["digits"]
    assert (found.sent, found.answered, found.lost) == (5, 4, 1)
    assert (model.sent, model.answered, model.lost) == (5, 4, 1)
    assert found.accuracy == model.accuracy == pytest.approx(3 / 4)
    assert model.p50_ms == pytest.approx(150)
    assert (model.slo_percentile, model.slo_ms) == (95, 400)


def test_a_request_without_any_end_is_lost() -> None:
    stats = counted()
    stats["digits"].sent += 1
    assert figures(stats).lost == 2


def test_the_plan_in_force_at_the_start_is_no_reconfiguration() -> None:
    plans = [Plan(version=5, steps=0), Plan(version=4, steps=6, slice_changes=2)]
    found = figures(plans=[*plans, Plan(version=3, steps=9)])
    assert (found.plans, found.reconfigurations) == (3, 1)


def test_report_json_has_exactly_the_promised_fields(tmp_path: Path) -> None:
    report.write(tmp_path / "report.json", {"base": figures(), "cinquefoil": figures()})
    document = json.loads((tmp_path / "report.json").read_text())
    fields = (
        "sent answered lost accuracy energy_j_per_request carbon_gco2e_per_request "
        "idle_j_per_request gpus plans reconfigurations models"
    )
    of_model = "sent answered lost p50_ms p95_ms slo_percentile slo_ms slo_latency_ms accuracy"
    assert list(document) == ["base", "cinquefoil"]
    assert list(document["base"]) == fields.split()
    assert list(document["base"]["models"]["digits"]) == of_model.split()


def test_words_and_table_say_what_was_saved() -> None:
    console = Console(file=StringIO(), width=200)
    console.print(report.render(*compared()))
    text = console.file.getvalue()  # type: ignore[attr-defined] # a StringIO of this test's own
    assert "saved 50.0 % of the carbon and 50.0 % of the energy of BASE" in text
    assert "4 / 0" in text


def test_the_gain_counts_what_a_spared_gpu_would_draw_idle() -> None:
    """Of 100 J: 50 are saved, and an idle GPU draws 25."""
    text = report.gain(*compared())
    assert "on 1 instead of 2 GPUs" in text
    assert text.endswith("With as many GPUs, 1 idle, it would save 25.0 % of the energy.")


def test_the_price_names_accuracy_and_latency_missed() -> None:
    base, better = compared()
    """Of both suites: where BASE missed its objective, words and table say so, too."""
    late = {"digits": replace(better.models["digits"], slo_latency_ms=401.0)}
    kept = report.price(base, better)
    missed = report.price(replace(base, models=late), replace(better, models=late))
    start = "The price: -1.00 points of accuracy; digits p95"
    assert kept == (
        f"{start} 200 ms (BASE 200); every model met its latency objective; no request was lost."
    )
    assert missed == (
        f"{start} 401 ms (BASE 401); both missed the latency objective of digits; "
        "no request was lost."
    )
    rows = {label: ours for label, _, ours in report.rows(base, replace(better, models=late))}
    assert rows["digits: p95 (<= 400 ms)"] == "401 ms, missed"


def test_latencies_of_a_busy_machine_are_said_to_be_so() -> None:
    """Only where an objective was missed, and the cores were waited for."""
    base, better = compared()
    late = replace(base, models={"digits": replace(base.models["digits"], slo_latency_ms=401.0)})
    said = report.busy([late, better], 36.2, 2)
    assert said.startswith("This machine was busy with 36 processes on 2 cores")
    assert not report.busy([base, better], 36.2, 2)
    assert not report.busy([late, better], 2.5, 2)


def test_nothing_against_nothing_saves_nothing() -> None:
    assert report.saving(0.0, 0.0) == 0.0

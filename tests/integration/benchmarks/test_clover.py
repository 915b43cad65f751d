"""CLOVER's benchmark: its calibration, its figures, and what its world would measure."""

import pytest

from benchmarks.clover import applications, calibration, day, jobs, report
from benchmarks.clover.calibration import SWEEP
from benchmarks.clover.day import Hour, compare
from benchmarks.clover.jobs import Job, Results
from benchmarks.clover.setting import Setting


def hour(objective: float, carbon_g: float, accuracy: float) -> Hour:
    return Hour(objective, carbon_g, accuracy, 0.1, broken=False, floor_kept=True, decision_s=0.0)


def test_gaps_are_to_the_better_reference_of_each_hour_and_savings_to_base() -> None:
    days = {
        "base": [hour(0.0, 100.0, 80.0), hour(0.0, 300.0, 80.0)],
        "exact": [hour(5.0, 50.0, 79.0), hour(6.0, 100.0, 79.0)],
        "oracle": [hour(4.0, 50.0, 80.0), hour(7.0, 150.0, 80.0)],
    }
    rows = compare(days, best_accuracy=80.0)
    assert rows["exact"]["gap_to_oracle_points"] == 0.5
    assert rows["base"]["worst_gap_points"] == 7.0
    assert rows["oracle"]["carbon_saving_pct"] == 50.0
    assert rows["exact"]["accuracy_loss_pct"] == pytest.approx(1.25)


@pytest.mark.skipif(not SWEEP.is_file(), reason="needs the artifact's measurements")
def test_the_calibrated_profile_is_near_what_was_measured() -> None:
    """Power within 20 % at every point; idle power within what an A100 draws."""
    rows = calibration.errors()
    assert len(rows) == 18
    assert all(abs(float(str(row["power_error_pct"]))) < 20.0 for row in rows)
    fits, idle_w = calibration.calibrated()
    assert 30.0 < idle_w < 60.0
    kept, kept_idle_w = calibration.FITTED
    assert idle_w == pytest.approx(kept_idle_w, rel=0.02)
    for name, fit in fits.items():
        assert fit.energy == pytest.approx(kept[name].energy, rel=0.05)


@pytest.mark.parametrize("name", applications.TITLES)
def test_base_just_keeps_the_sla_at_its_load(name: str) -> None:
    """The setting is the paper's: neither starvation nor idle GPUs."""
    setting = Setting(name)
    (found,) = day.plan(setting, "base", [(0, 200.0)])
    (crowded,) = day.plan(Setting(name, load=1.2), "base", [(0, 200.0)])
    assert not found.broken
    assert crowded.broken


def test_the_headline_has_every_strategy_of_every_application_that_ran() -> None:
    setting = Setting("efficientnet")
    results: Results = {
        job: jobs.result(job)
        for job in (
            Job("day", setting, name, (0,)) for name in ("base", "co2opt", "exact", "oracle")
        )
    }
    found = report.headline(results)
    assert set(found) == {"EfficientNet"}
    assert set(found["EfficientNet"]) == {"base", "co2opt", "exact", "oracle"}
    assert found["EfficientNet"]["exact"]["gap_to_oracle_points"] == pytest.approx(0.0, abs=1e-6)
    assert found["EfficientNet"]["exact"]["sla_violations"] == 0

"""A mean accuracy over a period, kept by the planner's own cycle in virtual time."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from services.simulator.run import draw_arrivals, simulate
from tests.support.scenarios import ScenarioOf

HOUR_S = 60.0
"""An hour of grid time, s."""

SPEEDUP = 60


DAYS = 2


@pytest.mark.timeout(300)
def test_each_day_has_its_mean_and_clean_hours_the_accurate_answers(
    scenario: ScenarioOf, tmp_path: Path
) -> None:
    """Two days of a grid that is clean by night; a mean of 95 % over a day, never below 88 %."""
    grid = tmp_path / "grid.csv"
    rows = (
        f"2024-01-0{day + 1}T{hour:02}:00:00Z,{150 if hour < 12 else 400}"
        for day in range(DAYS + 1)
        for hour in range(24)
    )
    grid.write_text("\n".join(["timestamp,carbon_intensity_gco2e_per_kwh", *rows]))
    setting = scenario(
        duration_s=DAYS * 24 * HOUR_S,
        detail="sampled",
        policies=["exact"],
        load={"m": {"kind": "constant", "rate_rps": 40}},
        grid_speedup=SPEEDUP,
        start="2024-01-01T00:00:00Z",
        deployment={
            "carbon": {
                "zones": {"G": {"source": {"kind": "trace", "path": str(grid)}}},
            },
            "nodes": {"n": {"zone": "G"}},
            "planner": {
                "objective": {
                    "accuracy_mean": {"at_least": 0.95, "over": "24h"},
                    "accuracy_floor": 0.88,
                    "park_idle_gpus": True,
                },
                "triggers": {"min_interval_s": 5, "plans_per_hour": 0, "intensity_dwell_s": 0},
            },
        },
    )
    seen = simulate(setting, setting.scenario.policies[0], draw_arrivals(setting))
    answers: defaultdict[tuple[int, float], Counter[str]] = defaultdict(Counter)
    for each in seen.intervals:
        intensity = each.intensity_gco2e_per_kwh["G"]
        share = sum(each.arrived.values()) / max(sum(each.answers.values()), 1)
        for (_, variant), count in each.answers.items():
            answers[int(each.begin_s // (24 * HOUR_S)), intensity][variant] += round(share * count)
    for day in range(DAYS):
        clean, dirty = answers[day, 150.0], answers[day, 400.0]
        assert clean["large"] > 0.97 * clean.total()
        assert dirty["small"] > 0.85 * dirty.total()
        both = clean + dirty
        mean = (both["large"] + 8 / 9 * both["small"]) / both.total()
        assert 0.945 <= mean <= 0.955
    assert len(seen.plans) <= 4 * DAYS

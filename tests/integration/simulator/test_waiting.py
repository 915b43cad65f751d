"""Requests that can wait, in virtual time: by the planner's and the batch service's own code."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.kit.config.loader import ConfigError
from services.simulator.loader import Setting, read
from services.simulator.report.figures import Figures, figures
from services.simulator.run import draw_arrivals, simulate
from tests.integration.simulator.test_language import CHAT, constant
from tests.support.scenarios import merged

START = datetime(2026, 6, 8, tzinfo=UTC)
CLEAN_H = range(10, 16)
SPEEDUP = 120.0
"""An hour of the grid in half a minute."""


def grid(folder: Path) -> Path:
    """Write a grid that is clean at the same hours of each day, for a week before the start."""
    path = folder / "grid.csv"
    rows = ["timestamp,carbon_intensity_gco2_per_kwh"]
    for hour in range(-7 * 24, 3 * 24):
        at = START + timedelta(hours=hour)
        rows.append(f"{at.isoformat()},{50 if at.hour in CLEAN_H else 500}")
    path.write_text("\n".join(rows) + "\n")
    return path


def scenario(folder: Path, **changes: Any) -> Setting:
    """Return a day of conversations, with others that can wait."""
    given: Mapping[str, Any] = {
        "duration_s": 24 * 3600 / SPEEDUP,
        "start": START,
        "grid_speedup": SPEEDUP,
        "carbon": {"Z": {"kind": "trace", "path": str(grid(folder))}},
        "load": constant(2.0),
        # Of slices no more would be cut than these texts take: nothing of a clean hour is free.
        "deployment": {"nodes": {"n": {"allow_mig_mode": False}}},
        "waiting": {"chat": {"load": {"kind": "constant", "rate_rps": 1.0}, "window_h": 24}},
        "policies": ["exact", {"strategy": "exact", "name": "at once", "waiting": "at_once"}],
        **changes,
    }
    path = folder / "waiting.yaml"
    path.write_text(yaml.safe_dump(merged(CHAT, given), sort_keys=False))
    return read(path)


@pytest.fixture
def compared(tmp_path: Path) -> tuple[Figures, Figures]:
    """The figures of both policies, with the same requests."""
    setting = scenario(tmp_path)
    requests = draw_arrivals(setting)
    policies = setting.scenario.policies
    planned, at_once = (figures(simulate(setting, each, requests)) for each in policies)
    return planned, at_once


@pytest.mark.timeout(120)
def test_what_waits_runs_in_clean_hours_and_others_do_not_notice(
    compared: tuple[Figures, Figures],
) -> None:
    """The same work, most of it in clean hours; no deadline of it, and no objective, is missed."""
    planned, at_once = compared
    counts, at_once_counts = planned.waiting["chat"], at_once.waiting["chat"]

    assert counts.sent == at_once_counts.sent > 500
    assert at_once_counts.answered >= 0.99 * at_once_counts.sent
    assert counts.late == at_once_counts.late == 0
    each_g = counts.carbon_marginal_gco2e / counts.answered
    assert each_g < 0.7 * at_once_counts.carbon_marginal_gco2e / at_once_counts.answered
    assert counts.carbon_marginal_gco2e < counts.at_once_gco2e
    assert planned.models["chat"].sent == at_once.models["chat"].sent
    assert planned.models["chat"].met
    assert at_once.models["chat"].met
    for one, its in ((planned, counts), (at_once, at_once_counts)):  # tokens of both classes
        texts = one.models["chat"].texts
        assert texts is not None
        tokens = texts.output_tokens + its.output_tokens
        assert its.output_tokens > 0
        assert texts.active_j_per_token == pytest.approx(one.active_j / tokens, rel=0.01)


def test_what_cannot_be_simulated_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use detail: full"):
        scenario(tmp_path, detail="sampled")

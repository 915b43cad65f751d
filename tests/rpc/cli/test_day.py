"""A short day against real gRPC services: every request sent is accounted for, truthfully."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.cli.client import connected
from services.cli.demo.day import pass_day
from services.cli.demo.sample import Grid, SuiteRun
from services.kit.clock import RealClock
from services.kit.config.loader import load
from services.local.demo.digits import held_out
from services.local.demo.load import arrivals
from tests.support.cli.fake_services import suite


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    """Held-out images and labels, read outside of the loop."""
    return held_out()


async def test_answers_are_counted_and_checked_against_the_truth(
    tmp_path: Path, digits: tuple[Any, Any]
) -> None:
    """The service answers by a rule of its own, so the right share is known in advance."""
    images, labels = digits
    rule = images.sum(axis=1, dtype=np.float32) % 10
    load_plan = arrivals({"digits": 100}, 1.2, len(labels), seed=0)
    expected = sum(int(rule[one.image]) == int(labels[one.image]) for one in load_plan)
    shown: list[float] = []
    async with (
        suite(tmp_path / "one.yaml"),
        suite(tmp_path / "two.yaml"),
        connected(load(tmp_path / "one.yaml")) as one,
        connected(load(tmp_path / "two.yaml")) as two,
    ):
        runs = {
            "base": SuiteRun(one),
            "cinquefoil": SuiteRun(two),
        }
        grid = Grid("US-CAL", speedup=1440)
        await pass_day(runs, grid, load_plan, RealClock(), shown.append)
    for run in runs.values():
        stats = run.stats["digits"]
        assert (stats.sent, stats.answered, stats.lost) == (len(load_plan), len(load_plan), 0)
        assert stats.correct == expected
        assert all(0 < latency_s < 5 for latency_s in stats.latencies_s)
        first, *_, last = run.samples
        assert first.seconds == 0
        assert last.seconds > load_plan[-1].at_s
    assert shown == sorted(shown)
    assert len(shown) > 2
    assert grid.intensity_gco2e_per_kwh == 180.5


async def test_requests_to_a_router_that_is_away_are_lost_and_the_reason_is_kept(
    tmp_path: Path,
) -> None:
    async with (
        suite(tmp_path / "one.yaml", without="router"),
        connected(load(tmp_path / "one.yaml")) as one,
    ):
        run = SuiteRun(one)
        load_plan = arrivals({"digits": 50}, 0.3, 719, seed=0)
        grid = Grid("US-CAL", speedup=1440)
        await pass_day({"base": run}, grid, load_plan, RealClock(), lambda _: None)
    stats = run.stats["digits"]
    assert stats.sent == stats.lost == len(load_plan) > 0
    assert stats.answered == 0
    assert all(reason.startswith("UNAVAILABLE: ") for reason in stats.losses)

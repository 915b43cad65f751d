"""The chart is drawn from the accounts."""

import struct
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from services.cli.demo.chart import draw, rates
from tests.support.cli.demo_days import VARIANTS, changes, day


def test_chart_is_a_png_of_a_readable_size(tmp_path: Path) -> None:
    picture = tmp_path / "timeline.png"
    samples = {
        "base": day(power_w=180, follows=False),
        "cinquefoil": day(power_w=60, follows=True),
    }
    draw(picture, changes(), samples, VARIANTS)
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height) == (1200, 1200)
    assert len(content) > 30_000, "it shows something"


def test_the_shortest_day_can_be_drawn(tmp_path: Path) -> None:
    """Two samples: the load's start and its end."""
    short = day(power_w=100, follows=False)[:2]
    draw(tmp_path / "short.png", changes()[:1], {"base": short, "cinquefoil": short}, VARIANTS)
    assert (tmp_path / "short.png").stat().st_size > 10_000


def test_a_constant_power_is_drawn_as_that_power() -> None:
    _, power_w = rates(day(power_w=100, follows=False), attrgetter("energy_j"), 1.0)
    assert power_w == pytest.approx(np.full(len(power_w), 100.0))


def test_readings_without_a_new_report_do_not_bend_the_curve() -> None:
    """An account that moves only at every other reading has the same slope."""
    samples = day(power_w=100, follows=False)
    stale = [
        replace(reading, energy_j=samples[index - index % 2].energy_j)
        for index, reading in enumerate(samples)
    ]
    _, power_w = rates(stale, attrgetter("energy_j"), 1.0)
    assert power_w == pytest.approx(np.full(len(power_w), 100.0))


def test_an_account_that_never_moves_has_no_curve() -> None:
    still = [replace(reading, energy_j=0.0) for reading in day(power_w=100, follows=False)]
    times, power_w = rates(still, attrgetter("energy_j"), 1.0)
    assert (times, len(power_w)) == ([], 0)

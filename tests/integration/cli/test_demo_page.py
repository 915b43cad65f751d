"""The day's page is made of the accounts."""

import json
import re
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from defusedxml import ElementTree

from services.cli.console.slice_bars import SliceCells
from services.cli.demo import moving_picture, report
from services.cli.demo.page import rates, write
from services.console.palette import shades
from services.kit.config.loader import load
from services.local.demo.load import RequestStats
from tests.support.cli.demo_days import changes, day
from tests.support.paths import ROOT


def parts(page: Path) -> dict[str, Any]:
    """Return the parts that a page shows, by caption."""
    (found,) = re.findall(r'id="report">(.*)</script>', page.read_text())
    return {part["caption"]: part for part in json.loads(found)["parts"]}


@pytest.mark.parametrize("readings", [121, 2], ids=["a day", "the shortest day"])
def test_a_page_shows_all_of_a_day(tmp_path: Path, readings: int) -> None:
    models = load(ROOT / "cinquefoil.yaml").models
    samples = {
        "base": day(power_w=180, follows=False)[:readings],
        "cinquefoil": day(power_w=60, follows=True)[:readings],
    }
    figures = {
        name: report.figures({"digits": RequestStats()}, found, [], models)
        for name, found in samples.items()
    }
    write(tmp_path / "report.html", figures, changes(), samples, models)
    found = parts(tmp_path / "report.html")

    served = found["Cinquefoil: what runs on node-0/0"]
    assert {band["runs"] for band in served["bands"]} <= {"digits/linear", "digits/svc"}
    assert {band["colour"] for band in served["bands"]} <= set(shades(models).values())
    for reading in samples["cinquefoil"][:-1]:
        at_s = reading.at.timestamp()
        held = [b for b in served["bands"] if b["since_s"] <= at_s < b["until_s"]]
        assert sum(band["compute_slices"] for band in held) == 3
    for part in found.values():
        for line in part.get("lines", ()):
            assert len(line["values"]) == len(part["times_s"])


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


@pytest.mark.parametrize("readings", [121, 2], ids=["a day", "the shortest day"])
def test_the_moving_picture_has_each_change_of_a_gpu(tmp_path: Path, readings: int) -> None:
    """Its bands are what ran, in the order in which it ran; its words say what a viewer sees."""
    models = load(ROOT / "cinquefoil.yaml").models
    samples = {
        "base": day(power_w=180, follows=False)[:readings],
        "cinquefoil": day(power_w=60, follows=True)[:readings],
    }
    figures = {
        name: report.figures({"digits": RequestStats()}, found, [], models)
        for name, found in samples.items()
    }
    moving_picture.write(tmp_path / "day.svg", figures, changes(), samples, models)
    drawn = ElementTree.fromstring((tmp_path / "day.svg").read_text())
    bands = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}title")]
    ran = [each.gpus[0].slices[0].runs for each in samples["cinquefoil"]]
    assert bands == [name for name, _ in groupby(ran)]
    assert "less carbon" in drawn.attrib["aria-label"]


def test_a_slice_that_reaches_beyond_its_gpu_is_drawn_within_it(tmp_path: Path) -> None:
    """Slices start at a slice of memory, of which a GPU has more than of compute: never 9 of 7."""
    models = load(ROOT / "cinquefoil.yaml").models
    wide = (SliceCells(0, 4, "digits/svc"), SliceCells(6, 3, "digits/tree"))
    samples = [
        replace(reading, gpus=(replace(reading.gpus[0], cells=7, slices=wide),))
        for reading in day(power_w=60, follows=True)
    ]
    both = {"base": samples, "cinquefoil": samples}
    figures = {
        name: report.figures({"digits": RequestStats()}, found, [], models)
        for name, found in both.items()
    }
    write(tmp_path / "report.html", figures, changes(), both, models)
    drawn = parts(tmp_path / "report.html")["Cinquefoil: what runs on node-0/0"]
    spans = sorted((b["start"], b["start"] + b["compute_slices"]) for b in drawn["bands"])
    assert spans == [(0, 4), (4, 7)]

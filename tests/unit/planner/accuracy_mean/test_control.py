"""A mean accuracy is kept over each period with less carbon than by a standing mixture."""

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from services.kit.config import AccuracyMean
from services.planner.core.accuracy_mean.control import AccuracyControl, Usual
from services.planner.core.accuracy_mean.frontier import Frontier, Level
from services.planner.core.accuracy_mean.ledger import AccuracyLedger

PERIOD_H = 672
ACCURACY = (0.95, 0.97, 0.99, 1.0)
WATTS = (100.0, 115.0, 160.0, 220.0)
UNIT_GCO2E = 1e-3
SLOPES = np.diff(WATTS) / np.diff(ACCURACY)
"""Watts per accuracy between neighbours: in proportion to the price from which the next is best."""

FRONTIER = Frontier(
    intensity_gco2e_per_kwh={"Z": 200.0},
    power_w={"Z": 400.0},
    demand_rps={"m": 100.0},
    unit_gco2e={"m": UNIT_GCO2E},
    levels=(Level(1.0, SLOPES / SLOPES[1], {"m": np.array(ACCURACY)}, np.zeros(len(ACCURACY))),),
)
"""Four plans of one model; at the usual grid the third is best from a price of one unit on."""


def grid(hours: int, seed: int) -> list[float]:
    """Return intensities with a day, a season and weather of several days."""
    draw, weather, found = Random(seed), 0.0, []
    for hour in range(hours):
        weather = 0.985 * weather + draw.gauss(0, 0.04)
        season = 0.15 * math.sin(2 * math.pi * hour / 8760 + seed)
        day = 0.2 * math.sin(2 * math.pi * hour / 24)
        found.append(200.0 * max(0.1, 1 + season + day + weather))
    return found


OTHER = replace(
    FRONTIER,
    levels=(replace(FRONTIER.levels[0], accuracy={"m": np.array((0.93, 0.96, 0.985, 1.0))}),),
)
"""The frontier after another file of the model: the same watts, other accuracies."""


def kept(
    values: Sequence[float],
    control: AccuracyControl,
    rps: Sequence[float],
    other_from: int | None = None,
) -> tuple[list[float], list[float]]:
    """Return the accuracy and the watts of each hour when plans follow the control's prices.

    From the hour `other_from` the model is another one.
    """
    accuracy, watts = [], []
    for hour, value in enumerate(values):
        at_s = hour * 3600.0
        control.ledger.hold(at_s, intensity={"Z": value}, demand_rps={"m": rps[hour]})
        if hour == other_from:
            control.learn(Usual("other", {"Z": value}, {"m": rps[hour]}, (1.0,)), OTHER)
        level = (control.frontier or FRONTIER).levels[0]
        price = control.prices(at_s)["m"] / UNIT_GCO2E * 200.0 / value
        chosen = int(np.searchsorted(level.prices, price, "right"))
        accuracy.append(float(level.accuracy["m"][chosen]))
        watts.append(WATTS[chosen])
        control.ledger.answer(at_s + 1.0, {"m": 3600 * rps[hour]}, {"m": accuracy[-1]})
    return accuracy, watts


def hindsight(values: Sequence[float], goal: float) -> float:
    """Return the least watts times intensity of a period with a mean, all of its hours known."""
    turns = np.multiply.outer(SLOPES, values).ravel()
    order = np.argsort(turns)
    steps = np.repeat(np.diff(ACCURACY), len(values))[order]
    within = ACCURACY[0] + np.cumsum(steps) / len(values) <= goal
    return WATTS[0] * sum(values) + float(np.sum((steps * turns[order])[within]))


def test_each_period_has_its_mean_with_most_of_what_hindsight_saves() -> None:
    """Four periods of three grids after a first one: none lacks more than .1 points."""
    reached = []
    for seed in range(3):
        values = grid(5 * PERIOD_H, seed)
        control = AccuracyControl(AccuracyLedger(PERIOD_H), frontier=FRONTIER)
        control.configure(AccuracyMean(at_least=0.98))
        accuracy, watts = kept(values, control, [100.0] * len(values))
        means = [sum(part) / PERIOD_H for part in np.array_split(accuracy, 5)]
        assert min(means) >= 0.979
        assert max(means) <= 0.982
        own, used = values[PERIOD_H:], watts[PERIOD_H:]
        standing = np.interp(0.98, ACCURACY, WATTS) * sum(own)
        best = sum(hindsight(part.tolist(), 0.98) for part in np.array_split(own, 4))
        reached.append((standing - np.dot(used, own)) / (standing - best))
    assert sum(reached) / 3 >= 0.88


def test_a_mean_counts_answers_not_hours() -> None:
    """Ten times the load by day: the mean over answers is kept, not that over hours."""
    values = grid(4 * PERIOD_H, 1)
    rps = [100.0 if hour % 24 < 12 else 10.0 for hour in range(len(values))]
    control = AccuracyControl(AccuracyLedger(PERIOD_H), frontier=FRONTIER)
    control.configure(AccuracyMean(at_least=0.98))
    accuracy, _ = kept(values, control, rps)
    for part in range(4):
        chosen = slice(part * PERIOD_H, (part + 1) * PERIOD_H)
        assert np.average(accuracy[chosen], weights=rps[chosen]) >= 0.979


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ("more load", 0.25),
        ("more load", 0.75),
        ("less load", 0.5),
        ("other model", 0.25),
        ("other model", 0.75),
        ("dirtier grid", 0.5),
    ],
)
def test_a_change_in_mid_period_leaves_the_mean_within_a_tenth_of_a_point(
    change: str, at: float
) -> None:
    """Four times the load, a quarter of it, another file of the model, twice the intensity."""
    hours = 3 * PERIOD_H
    moved = round((1 + at) * PERIOD_H)
    values, rps = grid(hours, 3), [100.0] * hours
    match change:
        case "more load":
            rps[moved:] = [400.0] * (hours - moved)
        case "less load":
            rps[moved:] = [25.0] * (hours - moved)
        case "dirtier grid":
            values[moved:] = [2 * value for value in values[moved:]]
    control = AccuracyControl(AccuracyLedger(PERIOD_H), frontier=FRONTIER)
    control.configure(AccuracyMean(at_least=0.98))
    other_from = moved if change == "other model" else None
    accuracy, _ = kept(values, control, rps, other_from)
    for part in range(3):
        chosen = slice(part * PERIOD_H, (part + 1) * PERIOD_H)
        assert np.average(accuracy[chosen], weights=rps[chosen]) >= 0.979


def test_another_planner_goes_on_where_the_first_stopped() -> None:
    """Prices rest on the written hours alone: a successor finds the same ones."""
    values = grid(PERIOD_H, 2)
    first = AccuracyControl(AccuracyLedger(PERIOD_H), frontier=FRONTIER)
    first.configure(AccuracyMean(at_least=0.98))
    kept(values[:500], first, [100.0] * 500)
    second = AccuracyControl(AccuracyLedger(PERIOD_H), frontier=FRONTIER)
    second.configure(AccuracyMean(at_least=0.98))
    now_s = 500 * 3600.0
    second.ledger.restore(first.ledger.lately(now_s - 1), now_s)
    assert second.so_far(now_s) == pytest.approx(first.so_far(now_s))
    assert second.prices(now_s) == pytest.approx(first.prices(now_s), rel=0.01)


def test_what_is_written_is_each_hour_that_ended() -> None:
    """Hours are to be written once one has ended, and not again until the next has."""
    ledger = AccuracyLedger(PERIOD_H)
    ledger.hold(0.0, intensity={"Z": 100.0}, demand_rps={"m": 1.0})
    assert not ledger.unwritten()
    ledger.hold(2 * 3600.0, intensity={"Z": 300.0})
    assert [hour.number for hour in ledger.unwritten()] == [0, 1]
    ledger.written = 1
    assert not ledger.unwritten()


def test_under_replay_an_hour_of_grid_time_is_shorter() -> None:
    """With a speedup of 60 a minute is an hour, and its intensity the mean over it."""
    ledger = AccuracyLedger(PERIOD_H, speedup=60.0)
    ledger.hold(0.0, intensity={"Z": 100.0})
    ledger.hold(30.0, intensity={"Z": 200.0})
    ledger.hold(60.0, intensity={"Z": 50.0})
    (hour,) = ledger.unwritten()
    assert hour.intensity_gco2e_per_kwh["Z"] == pytest.approx(150.0)
    assert ledger.left_h(60.0) == PERIOD_H - 1


def test_without_a_promise_accuracy_has_no_price() -> None:
    """A weight of carbon then says what accuracy is worth."""
    control = AccuracyControl(AccuracyLedger(PERIOD_H), frontier=FRONTIER)
    control.ledger.hold(0.0, intensity={"Z": 100.0}, demand_rps={"m": 1.0})
    assert control.prices(0.0) == {}
    assert control.usual("fleet", 0.0) is None


def test_a_frontier_is_due_until_it_is_found() -> None:
    """Another look in the same hour finds the same; an hour without a grid says nothing."""
    control = AccuracyControl(AccuracyLedger(PERIOD_H), promise=AccuracyMean(at_least=0.98))
    assert control.usual("fleet", 0.0) is None
    control.ledger.hold(0.0, intensity={"Z": 100.0}, demand_rps={"m": 1.0})
    due = control.usual("fleet", 0.0)
    assert due is not None
    assert control.usual("fleet", 0.0) is due
    control.learn(due, FRONTIER)
    assert control.usual("fleet", 0.0) is None
    assert control.usual("a larger fleet", 0.0) is not None

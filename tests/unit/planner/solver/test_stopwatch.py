"""Limits of searches: processor time, whatever else the machine does."""

import time
from typing import Any

import highspy
import numpy as np
import pytest

from services.planner.core.solver.stopwatch import PATIENCE, Stopwatch


def test_waiting_for_a_processor_hardly_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds by the clock with one of the processor are as good as two."""
    cpu_s, clock_s = iter((1.0, 2.0)), iter((50.0, 60.0))
    monkeypatch.setattr(time, "thread_time", lambda: next(cpu_s))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock_s))

    assert Stopwatch().time_s == pytest.approx(max(1.0, 10.0 / PATIENCE))


def hard_program() -> Any:
    """Return a solver with a program that takes minutes: 60 integers, 40 dense rows."""
    draw, width, height = np.random.default_rng(1), 60, 40
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = width, height
    lp.col_cost_ = -draw.uniform(5, 20, width)
    lp.col_lower_, lp.col_upper_ = np.zeros(width), np.full(width, 3.0)
    lp.row_lower_, lp.row_upper_ = np.full(height, -highspy.kHighsInf), np.full(height, 100.0)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.arange(0, width * height + 1, width)
    lp.a_matrix_.index_ = np.tile(np.arange(width), height)
    lp.a_matrix_.value_ = draw.uniform(1, 20, width * height)
    lp.integrality_ = [highspy.HighsVarType.kInteger] * width
    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # it has no types
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.passModel(lp)
    return highs


def test_a_search_ends_at_its_limit_with_its_best_answer_and_the_next_has_time_again() -> None:
    """Whatever else runs on the machine: each of them gets its processor time."""
    watch, highs = Stopwatch(), hard_program()
    watch.watch(highs)
    values = []
    for _ in range(2):
        began_s, began_cpu_s = watch.time_s, time.thread_time()
        watch.limit(highs, began_s + 0.3)
        highs.run()
        values.append(highs.getInfo().objective_function_value)
        assert watch.time_s - began_s > 0.25
        assert time.thread_time() - began_cpu_s < 0.6
    assert max(values) < 0

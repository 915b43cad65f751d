"""The scheduling benchmark: its two ways to serve agree, and its streams have the load they say."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.generative.scheduling import Setting, rows_of, stream
from benchmarks.generative.serving import Jobs, ranked, routed
from benchmarks.generative.traces import Trace

SERVICES_S = np.array([0.5, 1.0, 2.0, 4.0, 8.0])
CLASSES = np.arange(5)
TRACE = Trace("made up", SERVICES_S, CLASSES, CLASSES)


def few(setting: Setting) -> Jobs:
    jobs, _ = stream(setting, seed=1)
    return Jobs(jobs.arrivals_s[:2000], jobs.services_s[:2000], jobs.classes[:2000])


@pytest.mark.parametrize("slots", [1, 8])
def test_the_dispatcher_serves_in_turn_exactly_as_the_heap_does(slots: int) -> None:
    jobs = few(Setting(TRACE, 0.9, slots=slots))

    found = routed(jobs, slots, overtaking_s=1.0, discipline="fcfs")

    assert found == pytest.approx(ranked(jobs, slots, jobs.arrivals_s))


@pytest.mark.parametrize("cv", [1.0, 3.0])
def test_a_stream_has_the_load_and_the_burstiness_it_says(cv: float) -> None:
    jobs, _ = stream(Setting(TRACE, 0.7, cv), seed=2)
    gaps_s = np.diff(jobs.arrivals_s)

    assert jobs.services_s.sum() / jobs.arrivals_s[-1] == pytest.approx(0.7, rel=0.1)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.1)


def test_a_row_for_each_order_says_what_it_gains_over_first_come() -> None:
    first, boosted = rows_of(Setting(TRACE, 0.9, seeds=1))

    assert (first["order"], first["mean_cut_pct"], first["max_ratio"]) == ("FCFS", 0.0, 1.0)
    assert boosted["mean_cut_pct"] > 15
    assert boosted["throughput_ratio"] == pytest.approx(1.0, rel=0.01)

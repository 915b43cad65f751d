"""The scheduling benchmark: its two ways to serve agree, and its streams have the load they say."""

import numpy as np
import pytest

from benchmarks.generative.repeats import by_the_others
from benchmarks.generative.scheduling import PEAK_ANSWERS, Arrivals, Setting, rows_of, stream
from benchmarks.generative.serving import Jobs, ranked, routed
from benchmarks.generative.traces import Trace, imitated, perfect
from services.predictor.training.core.metrics import confusion
from services.predictor.training.core.rows import Row

SERVICES_S = np.array([0.5, 1.0, 2.0, 4.0, 8.0])
CLASSES = np.arange(5)
TRACE = Trace("made up", "an oracle", SERVICES_S, CLASSES, CLASSES)


def few(setting: Setting) -> Jobs:
    jobs, _ = stream(setting, seed=1)
    return Jobs(jobs.arrivals_s[:2000], jobs.services_s[:2000], jobs.classes[:2000])


@pytest.mark.parametrize("slots", [1, 8])
def test_the_dispatcher_serves_in_turn_exactly_as_the_heap_does(slots: int) -> None:
    jobs = few(Setting(TRACE, 0.9, slots=slots))

    found = routed(jobs, slots, overtaking_s=1.0, discipline="fcfs")

    assert found == pytest.approx(ranked(jobs, slots, jobs.arrivals_s))


@pytest.mark.parametrize(("arrivals", "cv"), [("Poisson", 1.0), ("bursty", 3.0)])
def test_a_stream_has_the_load_and_the_burstiness_it_says(arrivals: Arrivals, cv: float) -> None:
    jobs, _ = stream(Setting(TRACE, 0.7, arrivals), seed=2)
    gaps_s = np.diff(jobs.arrivals_s)

    assert jobs.services_s.sum() / jobs.arrivals_s[-1] == pytest.approx(0.7, rel=0.1)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.1)


def test_peaks_begin_and_end_idle_and_have_the_load_they_say() -> None:
    jobs, _ = stream(Setting(TRACE, 0.9, "peaks"), seed=2)
    gaps_s = np.diff(jobs.arrivals_s)
    pauses = gaps_s > PEAK_ANSWERS * SERVICES_S.mean()
    busy_s = gaps_s[~pauses].sum()

    assert jobs.services_s.sum() / busy_s == pytest.approx(0.9, rel=0.1)
    assert busy_s / pauses.sum() == pytest.approx(PEAK_ANSWERS * SERVICES_S.mean(), rel=0.1)


def test_a_row_for_each_order_says_what_it_gains_over_first_come() -> None:
    first, boosted = rows_of(Setting(TRACE, 0.9, seeds=1))

    assert (first["order"], first["mean_cut_pct"], first["max_ratio"]) == ("FCFS", 0.0, 1.0)
    assert boosted["mean_cut_pct"] > 15
    assert boosted["throughput_ratio"] == pytest.approx(1.0, rel=0.01)


def test_imitated_predictions_are_wrong_as_often_and_as_far_as_those_they_imitate() -> None:
    """Whatever the answers: here half are of class 0, and the others were spread evenly."""
    rng = np.random.default_rng(3)
    true = rng.integers(0, 5, 50_000)
    other = Trace("theirs", "them", np.ones(50_000), rng.binomial(4, 0.1 + 0.2 * true), true)
    mine = np.where(rng.random(50_000) < 0.5, 0, true)

    found = imitated(perfect(Trace("ours", "us", np.ones(50_000), mine, mine)), other)

    theirs, ours = confusion(other.true, other.predicted), confusion(mine, found.predicted)
    assert ours / ours.sum(axis=1, keepdims=True) == pytest.approx(
        theirs / theirs.sum(axis=1, keepdims=True), abs=0.03
    )


def test_the_other_answers_to_a_prompt_say_nothing_of_this_one() -> None:
    """Each is predicted from all but itself; a prompt answered once gives no prediction."""
    lengths = {"a": [1, 3, 7], "b": [5], "c": [0, 1]}
    rows = [Row("m", prompt, tokens) for prompt, each in lengths.items() for tokens in each]

    kept, means = by_the_others(rows)

    assert [row.tokens for row in kept] == [1, 3, 7, 0, 1]
    assert np.exp2(means / np.log(2)) == pytest.approx([32**0.5, 4, 8**0.5, 2, 1])

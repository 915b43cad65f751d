"""Arrivals: their number, their order, how they follow one another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.simulator.load import Rate, arrivals, rate
from services.simulator.scenario import Arrivals, ConstantLoad, DailyLoad, TraceLoad

DAY_S = 86_400.0

kinds = st.sampled_from(["poisson", "gamma", "regular"])


@given(
    st.lists(st.floats(0, 200), min_size=1, max_size=6),
    kinds,
    st.floats(0.3, 4),
    st.integers(0, 99),
)
def test_arrivals_are_in_order_within_the_steps_and_only_where_there_is_load(
    rps: list[float], kind: str, cv: float, seed: int
) -> None:
    steps = Rate(np.arange(len(rps) + 1, dtype=np.float64) * 10.0, np.array(rps))

    times_s = arrivals(
        steps, Arrivals.model_validate({"kind": kind, "cv": cv}), np.random.default_rng(seed)
    )

    assert np.all(np.diff(times_s) >= 0)
    assert np.all((times_s >= 0) & (times_s <= 10.0 * len(rps)))
    counts = np.histogram(times_s, steps.edges_s)[0]
    assert not any(count for count, load in zip(counts, rps, strict=True) if load == 0)


def test_regular_arrivals_are_as_many_as_expected() -> None:
    steps = Rate(np.array([0.0, 10.0, 20.0]), np.array([10.0, 20.0]))

    times_s = arrivals(steps, Arrivals(kind="regular"), np.random.default_rng(0))

    assert len(times_s) == pytest.approx(300, abs=1)
    assert np.diff(times_s)[:90] == pytest.approx(0.1)
    assert np.diff(times_s)[110:] == pytest.approx(0.05)


@pytest.mark.parametrize(("kind", "cv"), [("poisson", 1.0), ("gamma", 2.5), ("gamma", 0.4)])
def test_gaps_vary_as_set(kind: str, cv: float) -> None:
    """Mean and coefficient of variation of 200,000 gaps, within 3 %."""
    steps = Rate(np.array([0.0, 2000.0]), np.array([100.0]))

    times_s = arrivals(
        steps, Arrivals.model_validate({"kind": kind, "cv": cv}), np.random.default_rng(1)
    )

    gaps_s = np.diff(times_s)
    assert gaps_s.mean() == pytest.approx(0.01, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.03)


@given(st.floats(0, 23.9), st.floats(0, 1))
def test_a_day_has_its_mean_its_peak_and_its_quietest_moment(peak: float, swing: float) -> None:
    load = DailyLoad(kind="daily", mean_rps=50, swing=swing, peak_hour=peak)

    found = rate(load, None, DAY_S, hour=0.0)

    assert found.expected[-1] == pytest.approx(50 * DAY_S)
    assert found.rps.max() == pytest.approx(50 * (1 + swing), rel=1e-4)
    assert found.rps.min() == pytest.approx(50 * (1 - swing), abs=0.01)
    if swing > 0.1:
        hour = found.edges_s[int(found.rps.argmax())] / 3600
        assert min(abs(hour - peak), 24 - abs(hour - peak)) < 0.05


def test_the_hour_at_the_start_shifts_the_day() -> None:
    load = DailyLoad(kind="daily", mean_rps=50, swing=0.5, peak_hour=15)

    assert int(rate(load, None, DAY_S, hour=15.0).rps.argmax()) in (0, 1439)


def test_a_trace_repeats_and_its_last_step_may_be_cut() -> None:
    load = TraceLoad.model_validate({"kind": "trace", "path": "x.csv", "step_s": 10})

    found = rate(load, np.array([1.0, 2.0]), 35.0, hour=0.0)

    assert found.edges_s.tolist() == [0, 10, 20, 30, 35]
    assert found.rps.tolist() == [1, 2, 1, 2]


def test_a_constant_load_is_one_step() -> None:
    found = rate(ConstantLoad(kind="constant", rate_rps=3), None, 7.0, hour=5.0)

    assert (found.edges_s.tolist(), found.rps.tolist()) == ([0, 7], [3])

"""Points of history add up to longer ones without loss, and answers are bounded."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.planner.v1.records import (
    FleetHistory,
    GpuHistory,
    HistoryPoint,
    ModelHistory,
    ZoneHistory,
)
from services.planner.core.history.points import (
    LEVELS,
    MAX_POINTS,
    merged,
    since_s,
    start_of,
    step_for,
    stretches,
)
from tests.support.examples import examples

START_S = 1_772_323_200
COUNTS = st.integers(0, 10**6)
SUMS = COUNTS.map(float)
"""Whole numbers: their sums are exact in any order."""
NAMES = st.sampled_from(["a", "b"])
POINTS = st.builds(
    HistoryPoint,
    since=st.integers(0, 200).map(lambda n: datetime.fromtimestamp(START_S + 60 * n, UTC)),
    fleet=st.builds(FleetHistory, *[SUMS] * 6),
    zones=st.dictionaries(NAMES, st.builds(ZoneHistory, SUMS, SUMS)),
    models=st.dictionaries(NAMES, st.builds(ModelHistory, *[COUNTS] * 5, SUMS, SUMS)),
    gpus=st.dictionaries(NAMES, st.builds(GpuHistory, SUMS, SUMS)),
)
MINUTES = st.lists(POINTS, unique_by=since_s, max_size=40).map(
    lambda points: sorted(points, key=since_s)
)


@examples(0.2)
@given(MINUTES)
def test_energy_and_time_are_the_same_at_each_level(minutes: list[HistoryPoint]) -> None:
    """Mean power times the time that it covers is the energy, however long the points are."""
    tens = list(stretches(minutes, 600))
    hours = list(stretches(tens, 3600))

    assert hours == list(stretches(minutes, 3600))
    for level in (minutes, tens, hours):
        powers_w = [
            (point.fleet.energy_j / point.fleet.metered_s, point.fleet.metered_s)
            for point in level
            if point.fleet.metered_s
        ]
        without_time_j = sum(each.fleet.energy_j for each in level if not each.fleet.metered_s)
        energy_j = sum(power_w * lasted_s for power_w, lasted_s in powers_w) + without_time_j
        assert abs(energy_j - sum(point.fleet.energy_j for point in minutes)) < 1e-6
    assert merged(hours, 0).fleet == merged(minutes, 0).fleet
    assert merged(hours, 0).gpus == merged(minutes, 0).gpus


@examples(0.4)
@given(MINUTES)
def test_stretches_begin_at_multiples_of_their_length_and_are_in_order(
    minutes: list[HistoryPoint],
) -> None:
    found = [since_s(point) for point in stretches(minutes, 600)]

    assert found == sorted({start_of(since_s(point), 600) for point in minutes})


def test_an_objective_is_the_last_that_held() -> None:
    """Objectives do not add up; a minute in which nothing was answered says nothing of it."""
    points = [
        HistoryPoint(models={"m": ModelHistory(slo_latency_s=latency_s, slo_percentile=95)})
        for latency_s in (0.4, 0.2, 0.0)
    ]

    assert merged(points, 0).models["m"].slo_latency_s == 0.2
    assert merged(points, 0).models["m"].slo_percentile == 95


@given(
    st.integers(0, 2 * 10**9),
    st.integers(1, 10**9),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2 * 10**9),
)
def test_no_window_has_more_points_than_an_answer_may(
    begin_s: int, length_s: int, wanted_s: int, now_s: int
) -> None:
    end_s = begin_s + length_s
    level, step_s = step_for(begin_s, end_s, wanted_s, now_s)

    assert step_s % level.step_s == 0
    assert step_s >= wanted_s
    assert (start_of(end_s, step_s) - start_of(begin_s, step_s)) / step_s + 1 <= MAX_POINTS


def test_the_longest_points_that_fit_are_read() -> None:
    """A day is minutes, or ten minutes where these are wanted; a month is hours."""
    now_s = START_S
    minute, ten, hour = LEVELS

    assert step_for(now_s - 86_400, now_s, 0, now_s) == (minute, 60)
    assert step_for(now_s - 86_400, now_s, 700, now_s) == (ten, 1200)
    assert step_for(now_s - 7 * 86_400, now_s, 60, now_s) == (ten, 600)
    assert step_for(now_s - 30 * 86_400, now_s, 0, now_s) == (hour, 3600)
    assert step_for(now_s - 399 * 86_400, now_s, 0, now_s) == (hour, 7 * 3600)

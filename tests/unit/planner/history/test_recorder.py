"""The recorder sums up what was reported in each minute, whatever the clock does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.planner.v1.records import HistoryPoint
from services.planner.core.accounting.accountant import Metered
from services.planner.core.history.points import merged, since_s
from services.planner.core.history.recorder import MAX_GPUS, Recorder
from services.planner.core.load_report import LoadReport
from services.planner.core.service_level import ServiceTarget

START_S = 1_772_323_200.0
AIMS = {"m": ServiceTarget(0.05, {"large": 1.0, "small": 0.5})}


def drawn(length_s: float, energy_j: float, *gpus: str) -> Metered:
    of_each = dict.fromkeys(gpus or ("GPU-1",), energy_j / max(len(gpus), 1))
    return Metered(length_s, of_each, energy_j, 2 * energy_j, 3 * energy_j, 4 * energy_j)


def test_a_constant_power_is_the_same_in_every_minute() -> None:
    """Reports every 7 s are cut at the minutes' ends: no minute has one report more."""
    recorder = Recorder()
    for number in range(1, 60):
        recorder.meter(drawn(7.0, 700.0), START_S + 7.0 * number)

    points = recorder.open({})

    assert len(points) == 7
    for point in points:
        assert point.fleet.energy_j == pytest.approx(100 * point.fleet.metered_s)
        assert point.fleet.base_energy_j == pytest.approx(300 * point.fleet.metered_s)
    assert [point.fleet.metered_s for point in points[:-1]] == pytest.approx([60.0] * 6)
    assert sum(point.fleet.energy_j for point in points) == pytest.approx(59 * 700)


def test_energy_of_a_gap_is_no_spike() -> None:
    """After an hour without a report its energy is the account's: the curve has a gap."""
    recorder = Recorder()
    recorder.meter(drawn(3600.0, 360_000.0), START_S + 10)

    before, now = recorder.open({})

    assert now.fleet.energy_j / now.fleet.metered_s == pytest.approx(100)
    assert before.fleet.energy_j / before.fleet.metered_s == pytest.approx(100)
    assert before.fleet.metered_s + now.fleet.metered_s == pytest.approx(70)


def test_a_routers_window_is_rates_latency_share_and_accuracy() -> None:
    recorder = Recorder()
    report = LoadReport(
        "r",
        1,
        2.0,
        arrivals={"m": 30},
        answered=20,
        latency_s={"m": 0.3},
        late={"m": 2},
        by_variant={"m": {"large": 15, "small": 5}},
        refused={"m": 4},
    )
    for _ in range(2):
        recorder.report(report, AIMS, START_S)

    (point,) = recorder.open({})
    model = point.models["m"]

    assert point.fleet.routed_s == 4.0
    assert (model.arrived, model.answered, model.late, model.refused) == (60, 40, 4, 8)
    assert model.latency_s / model.timed == pytest.approx(0.3)
    assert model.accuracy / model.answered == pytest.approx(17.5 / 20)


def test_an_intensity_counts_for_as_long_as_it_was_in_force() -> None:
    """A look after a suspended machine wakes counts for nothing: what was in force is unknown."""
    recorder = Recorder()
    recorder.look({"Z": 100.0}, START_S + 5, 5.0)
    recorder.look({"Z": 400.0}, START_S + 20, 15.0)
    recorder.look({"Z": 900.0}, START_S + 50, 3600.0)

    (point,) = recorder.open({})

    assert point.zones["Z"].known_s == 20.0
    assert point.zones["Z"].intensity_gco2e_s_per_kwh / 20.0 == pytest.approx(325)


def test_a_large_fleet_has_no_history_of_each_gpu() -> None:
    recorder = Recorder()
    recorder.meter(drawn(1.0, 512.0, *(f"GPU-{n}" for n in range(MAX_GPUS + 1))), START_S + 1)

    (point,) = recorder.open({})

    assert not point.gpus
    assert point.fleet.energy_j == 512.0


CLOCKS = st.lists(st.floats(-1e10, 1e10), min_size=1, max_size=30)


@given(CLOCKS)
def test_few_minutes_grow_whatever_the_clock_does(clock: list[float]) -> None:
    """Each jump closes the minutes that nothing more is expected of; no energy is in two."""
    recorder, closed = Recorder(), []
    for now_s in clock:
        recorder.meter(drawn(2.0, 20.0), now_s)
        recorder.look({"Z": 100.0}, now_s, 1.0)
        closed += recorder.closed(now_s, {})
        assert len(recorder.open({})) <= 2

    points = [*closed, *recorder.open({})]
    assert sum(point.fleet.energy_j for point in points) == pytest.approx(20.0 * len(clock))


@given(st.lists(st.floats(0.1, 20.0), min_size=2, max_size=40), st.data())
def test_two_recorders_one_after_the_other_are_as_one(
    waits_s: list[float], data: st.DataObject
) -> None:
    """A minute that a restart cuts is the sum of its parts: restart equals no restart."""
    at = data.draw(st.integers(1, len(waits_s) - 1))
    whole, parts = Recorder(), (Recorder(), Recorder())
    now_s = START_S
    of_whole: list[HistoryPoint] = []
    of_parts: list[HistoryPoint] = []
    for number, wait_s in enumerate(waits_s):
        now_s += wait_s
        part = parts[number >= at]
        if number == at:
            of_parts += parts[0].open({})
        for recorder, points in ((whole, of_whole), (part, of_parts)):
            recorder.meter(drawn(wait_s, 100 * wait_s), now_s)
            recorder.look({"Z": 100.0 + number}, now_s, wait_s)
            points.extend(recorder.closed(now_s, {}))
    of_whole += whole.open({})
    of_parts += parts[1].open({})

    by_start = {since_s(point): point for point in of_whole}
    for start_s, point in by_start.items():
        found = merged([each for each in of_parts if since_s(each) == start_s], start_s)
        assert found.fleet.energy_j == pytest.approx(point.fleet.energy_j)
        assert found.fleet.metered_s == pytest.approx(point.fleet.metered_s)
        assert found.zones["Z"].known_s == pytest.approx(point.zones["Z"].known_s)

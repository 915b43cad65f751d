"""The planner's memory of the grid: age, and noise that gives no reason to plan."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Triggers, Zone
from services.planner.core.grid_signal import GridSignal, assumed_gco2e_per_kwh
from services.planner.core.triggers import Observation, cause

DWELL_S = 60.0
SETTINGS = Triggers(intensity_change=0.05, intensity_dwell_s=DWELL_S)


def seen(signal: GridSignal, now_s: float, value: float) -> Observation:
    return Observation(
        intensity_gco2e_per_kwh={"Z": value},
        demand_rps={},
        gpus={},
        segments=frozenset(),
        strategy="exact",
        carbon_weight=0.5,
        steady_gco2e_per_kwh=signal.ranges(now_s),
    )


def causes(values: list[tuple[float, float]], until_s: float) -> list[float]:
    """Return when, looking every second, there was a cause to plan; a plan is made at once."""
    signal, found, value = GridSignal(DWELL_S), [], 0.0
    planned: Observation | None = None
    heard = dict(values)
    for now_s in range(int(until_s)):
        if now_s in heard:
            value = heard[now_s]
            signal.hear({"Z": value}, {}, now_s)
        now = seen(signal, now_s, value)
        if cause(planned, now, SETTINGS):
            found.append(float(now_s))
            planned = now
    return found


def test_a_change_is_a_cause_when_it_has_lasted() -> None:
    """A short peak of the grid starts no plan."""
    assert causes([(0, 100.0), (10, 120.0)], 200) == [0.0, 70.0]


def test_noise_that_comes_back_within_the_dwell_is_none() -> None:
    """Up and down by a fifth, every half minute, for twenty minutes."""
    noise = [(float(at), 120.0 if at % 60 else 100.0) for at in range(0, 1200, 30)]

    assert causes(noise, 1200) == [0.0]


def test_noise_around_a_new_level_does_not_hide_the_level() -> None:
    """The new values never come near the old level again."""
    noise = [(0.0, 100.0), *((10.0 + at, 150.0 + at % 40) for at in range(0, 200, 20))]

    assert causes(noise, 200) == [0.0, 70.0]


def test_noise_to_both_sides_is_no_change() -> None:
    """Far above, then far below: what it is now is not what it was throughout."""
    noise = [(0.0, 100.0), *((10.0 + at, 150.0 if at % 40 else 60.0) for at in range(0, 200, 20))]

    assert causes(noise, 200) == [0.0]


@given(values=st.lists(st.floats(1, 1000), min_size=1, max_size=20))
def test_without_a_dwell_every_change_counts_at_once(values: list[float]) -> None:
    """A dwell of 0 turns the wait off."""
    signal = GridSignal()
    for at, value in enumerate(values):
        signal.hear({"Z": value}, {}, at)

    assert signal.ranges(len(values)) == {"Z": (values[-1], values[-1])}
    assert signal.settles_s(len(values)) == math.inf


def test_it_says_when_to_look_again() -> None:
    """The planner sleeps until the dwell ends."""
    signal = GridSignal(DWELL_S)
    signal.hear({"Z": 100.0}, {}, 0.0)
    signal.hear({"Z": 120.0}, {}, 10.0)

    assert signal.settles_s(15.0) == pytest.approx(55.0)
    signal.ranges(70.0)
    assert signal.settles_s(70.0) == math.inf


def test_a_dwell_is_grid_time() -> None:
    """A grid hour per minute: what must last a quarter of an hour lasts 15 s."""
    signal = GridSignal(900.0, speedup=60.0)
    signal.hear({"Z": 100.0}, {}, 0.0)
    signal.hear({"Z": 120.0}, {}, 10.0)

    assert signal.settles_s(10.0) == pytest.approx(15.0)
    assert signal.ranges(24.9) == {"Z": (100.0, 120.0)}
    assert signal.ranges(25.0) == {"Z": (120.0, 120.0)}


def test_jumps_of_a_marginal_plant_make_no_plans_by_default() -> None:
    """Up and down by an eighth every ten minutes: a dozen causes without a dwell, none with it."""
    values = [112.0 if look // 2 % 2 else 100.0 for look in range(24)]
    found = {}
    for settings in (Triggers(), Triggers(intensity_dwell_s=0.0)):
        signal, planned, count = GridSignal(settings.intensity_dwell_s), None, 0
        for look, value in enumerate(values):
            signal.hear({"Z": value}, {}, 300.0 * look)
            now = seen(signal, 300.0 * look, value)
            if cause(planned, now, settings):
                planned, count = now, count + 1
        found[settings.intensity_dwell_s] = count

    assert found == {900.0: 1, 0.0: 12}


def test_knowledge_ages_with_silence_in_grid_time() -> None:
    """A grid hour per minute: heard when it was 5 min old, 30 s of silence make half an hour."""
    signal = GridSignal(speedup=60.0)
    signal.hear({"Z": 1.0, "Y": 1.0}, {"Z": 300.0}, 100.0)

    assert signal.staleness_s(130.0) == pytest.approx({"Z": 2100.0, "Y": 1800.0})
    signal.hear({"Z": 2.0}, {"Z": 0.0}, 130.0)
    assert signal.staleness_s(130.0) == pytest.approx({"Z": 0.0, "Y": 1800.0})


def test_another_intensity_than_before_a_restart_is_a_change_at_once() -> None:
    """It may have differed for long while no planner led; the dwell is not awaited."""
    signal = GridSignal(DWELL_S)
    signal.recall("Z", -3600.0)
    before = seen(signal, 0.0, 100.0)
    signal.hear({"Z": 200.0}, {}, 1.0)

    assert cause(before, seen(signal, 1.0, 200.0), SETTINGS) is not None


LIVE = {"kind": "neso"}
STATIC = {"kind": "static", "intensity_gco2e_per_kwh": 30.0}


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ({"source": STATIC}, 30.0),
        ({"source": [LIVE, STATIC]}, 30.0),
        ({"source": {"kind": "synthetic", "mean_gco2e_per_kwh": 210.0}}, 210.0),
        ({"source": LIVE}, 473.0),
        ({"source": {"kind": "trace", "path": "z.csv"}}, 473.0),
        ({"source": {"kind": "mqtt", "topic": "grid"}, "signal": "percentile"}, 50.0),
    ],
)
def test_every_kind_of_zone_has_an_intensity_to_assume(
    zone: dict[str, object], expected: float
) -> None:
    """Where the deployment says none, the world's mean, or the middle of a percentile."""
    assert assumed_gco2e_per_kwh(Zone.model_validate(zone)) == expected

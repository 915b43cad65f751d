"""PUE from a wall's meter: true where it can be known, unknown elsewhere, never absurd."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.energy.core.pue import HIGHEST, LOWEST, PueMeter, reported
from tests.support.examples import examples


def metered(
    meter: PueMeter, *, seconds: int, wall_w: float, device_w: float, begin_s: int = 0
) -> float:
    """Feed a steady draw, at the wall every 5 s, at the devices every second; return the end, s."""
    for second in range(begin_s, begin_s + seconds + 1):
        if second % 5 == 0:
            meter.wall(wall_w, second)
        meter.devices(device_w * second, second)
    return begin_s + seconds


@given(st.floats(10, 5000), st.floats(1.0, 3.0))
def test_of_steady_powers_it_is_their_ratio(device_w: float, ratio: float) -> None:
    meter = PueMeter(window_s=60, stale_after_s=20)
    now_s = metered(meter, seconds=120, wall_w=ratio * device_w, device_w=device_w)

    assert meter.pue(now_s) == pytest.approx(ratio)


@examples(0.4)
@given(
    st.lists(st.floats(0, 1e6), min_size=3, max_size=40),
    st.lists(st.floats(0, 1e6), min_size=40, max_size=40),
)
def test_it_is_never_out_of_bounds(walls_w: list[float], steps_j: list[float]) -> None:
    meter, energy_j = PueMeter(window_s=10, stale_after_s=20), 0.0
    for second, (wall_w, step_j) in enumerate(zip(walls_w, steps_j, strict=False)):
        energy_j += step_j
        meter.wall(wall_w, second)
        meter.devices(energy_j, second)
        pue = meter.pue(second)
        assert pue is None or LOWEST <= pue <= HIGHEST


def test_energies_are_compared_and_not_powers_of_a_moment() -> None:
    """A minute of load in which the meter spoke rarely still adds up."""
    meter, energy_j = PueMeter(window_s=100, stale_after_s=60), 0.0
    for second in range(101):
        device_w = 300.0 if second % 20 < 10 else 100.0
        meter.wall(1.2 * device_w, second)
        meter.devices(energy_j, second)
        energy_j += device_w

    assert meter.pue(100) == pytest.approx(1.2)


def test_a_meter_that_falls_silent_measures_no_more() -> None:
    meter = PueMeter(window_s=60, stale_after_s=20)
    now_s = metered(meter, seconds=60, wall_w=150, device_w=100)

    assert meter.pue(now_s + 20) == pytest.approx(1.5)
    assert meter.pue(now_s + 21) is None
    assert meter.wall_power_w(now_s + 21) is None


def test_a_gap_is_not_bridged() -> None:
    """After a silence the window begins again: the energy drawn meanwhile is unknown."""
    meter = PueMeter(window_s=60, stale_after_s=20)
    metered(meter, seconds=60, wall_w=150, device_w=100)
    now_s = metered(meter, seconds=30, wall_w=300, device_w=100, begin_s=200)

    assert meter.pue(now_s) == pytest.approx(3.0)


def test_the_window_forgets_what_is_older() -> None:
    meter = PueMeter(window_s=60, stale_after_s=20)
    for second in range(301):
        meter.wall(300 if second < 200 else 150, second)
        meter.devices(100 * second, second)

    assert meter.pue(300) == pytest.approx(1.5, rel=0.01)


def test_too_short_a_time_says_nothing() -> None:
    meter = PueMeter(window_s=300, stale_after_s=20)
    now_s = metered(meter, seconds=29, wall_w=150, device_w=100)

    assert meter.pue(now_s) is None


def test_devices_that_begin_again_do_not_count_backwards() -> None:
    meter = PueMeter(window_s=60, stale_after_s=20)
    for second in range(100):
        meter.wall(150, second)
        meter.devices(100 * (second if second < 50 else second - 50), second)

    assert meter.pue(99) == pytest.approx(1.5)


@given(st.lists(st.floats(1, 3), min_size=2))
def test_what_is_reported_is_near_and_changes_rarely(measured: list[float]) -> None:
    now: float | None = None
    said = [now := reported(now, each) for each in measured]

    for value, true in zip(said, measured, strict=True):
        assert value is not None
        assert abs(value - true) < 0.02 + 1e-9
    for before, after in pairwise(said):
        assert before is not None
        assert after is not None
        assert before == after or abs(after - before) > 0.009


def test_what_is_not_known_is_not_reported() -> None:
    assert reported(1.4, None) is None

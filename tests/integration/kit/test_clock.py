"""Clocks: virtual time wakes sleepers in order, scaled time keeps proportion."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from services.kit.clock import RealClock, ScaledClock
from tests.support.virtual_clock import VirtualClock

START = datetime(2022, 4, 8, tzinfo=UTC)


async def test_virtual_time_wakes_each_sleeper_at_its_instant_and_in_order() -> None:
    clock, woken = VirtualClock(START), list[tuple[str, float]]()

    async def sleeper(name: str, *delays_s: float) -> None:
        for delay_s in delays_s:
            await clock.sleep(delay_s)
            woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sleeper("late", 3), name="late")
        tasks.create_task(sleeper("twice", 1, 1), name="twice")
        tasks.create_task(sleeper("same", 2), name="same")
        await asyncio.sleep(0)
        await clock.advance(2.5)
        assert woken == [("twice", 1.0), ("same", 2.0), ("twice", 2.0)]
        assert clock.now() == START + timedelta(seconds=2.5)
        await clock.advance(0.5)

    assert woken[3:] == [("late", 3.0)]


async def test_virtual_time_stands_still_by_itself() -> None:
    clock = VirtualClock(START)
    await asyncio.sleep(0.01)

    assert (clock.now(), clock.monotonic()) == (START, 0.0)


async def test_sleeping_for_nothing_returns_at_once() -> None:
    for clock in (VirtualClock(START), ScaledClock(START, 1.0), RealClock()):
        await asyncio.wait_for(clock.sleep(0), timeout=5)
        await asyncio.wait_for(clock.sleep(-1), timeout=5)


async def test_scaled_sleep_is_as_long_on_its_own_clock_as_requested() -> None:
    """A grid day passes in a few milliseconds, and no sleeper wakes too early."""
    clock = ScaledClock(START, 1e7)
    began = clock.now()
    await clock.sleep(86_400)

    assert clock.now() - began >= timedelta(seconds=86_400)
    assert clock.monotonic() >= 86_400


def test_scaled_time_starts_at_the_given_utc_time() -> None:
    paris = datetime(2022, 4, 8, 2, tzinfo=timezone(timedelta(hours=2)))
    clock = ScaledClock(paris, 1e-6)

    assert clock.now().tzinfo is UTC
    assert timedelta() <= clock.now() - START < timedelta(seconds=1)


@pytest.mark.parametrize("speedup", [0, -1])
def test_a_clock_that_stands_or_goes_back_is_refused(speedup: float) -> None:
    with pytest.raises(ValueError, match="speedup must be > 0"):
        ScaledClock(START, speedup)


def test_real_time_is_utc_and_never_goes_back() -> None:
    clock = RealClock()

    assert clock.now().tzinfo is UTC
    assert clock.monotonic() <= clock.monotonic()

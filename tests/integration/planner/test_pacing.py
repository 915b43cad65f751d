"""Pace of the published tables, and turns of work that comes at once."""

import asyncio
from datetime import UTC, datetime

import pytest

from services.planner.control.pacing import Pacing, Turns
from tests.support.virtual_clock import VirtualClock

START = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_change_that_comes_alone_is_not_kept_waiting_by_the_one_before_it() -> None:
    """A table of a large fleet takes 0.1 s; one a second goes out at once, for ever."""
    clock = VirtualClock(START)
    pacing, pauses_s = Pacing(clock), []
    for _ in range(20):
        pauses_s.append(pacing.pause_s(0.1))
        await clock.advance(1.0)

    assert pauses_s == [0.0] * 20


@pytest.mark.parametrize(("spent_s", "share"), [(0.05, 0.2), (1.0, 2 / 3)])
async def test_changes_without_end_take_a_fifth_of_the_time_or_half_a_second_apart(
    spent_s: float, share: float
) -> None:
    """Changes come without end when a whole fleet joins at once."""
    clock, busy_s = VirtualClock(START), 0.0
    pacing = Pacing(clock)
    while clock.monotonic() < 100.0:
        await clock.advance(spent_s)
        busy_s += spent_s
        await clock.advance(pacing.pause_s(spent_s))

    assert busy_s / clock.monotonic() == pytest.approx(share, abs=0.02)


async def test_of_calls_that_come_at_once_some_are_begun_in_each_turn_of_the_loop() -> None:
    """A thousand agents neither hold up the loop, nor wait for ever while it is busy."""
    turn, turns = 0, Turns(most=3)
    begun: list[tuple[int, int]] = []

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def work(number: int) -> None:
        await turns.next()
        begun.append((number, turn))

    counting = asyncio.create_task(count())
    works = [asyncio.create_task(work(number)) for number in range(10)]
    await asyncio.sleep(0)
    works[1].cancel()
    await asyncio.wait(works)
    counting.cancel()

    assert [number for number, _ in begun] == [0, *range(2, 10)]
    first = begun[0][1]
    assert [at - first for _, at in begun] == [0, 0, 1, 1, 1, 2, 2, 2, 3]

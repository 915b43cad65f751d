"""Readers get the newest value; waiters wake at each change."""

from __future__ import annotations

import asyncio

from services.planner.broadcast import Broadcast
from services.planner.change_event import Notice


async def test_a_reader_starts_with_the_value_and_ends_when_closed() -> None:
    board = Broadcast(1)
    reader = board.follow()

    assert await anext(reader) == 1
    board.close()
    assert [value async for value in reader] == []


async def test_a_slow_reader_misses_what_lies_between_but_never_the_newest() -> None:
    board = Broadcast(0)
    reader = board.follow()
    assert await anext(reader) == 0
    for value in range(1, 6):
        board.publish(value)

    assert await anext(reader) == 5


async def test_a_value_published_while_a_reader_works_is_not_lost() -> None:
    board = Broadcast("old")
    seen = []
    async for value in board.follow():
        seen.append(value)
        if value == "old":
            board.publish("new")  # between this value and the reader's next wait
        else:
            board.close()

    assert seen == ["old", "new"]


async def test_until_looks_again_after_each_change() -> None:
    notice, values = Notice(), []

    async def change() -> None:
        for value in range(3):
            await asyncio.sleep(0)
            values.append(value)
            notice.notify()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(change())
        assert await notice.until(lambda: len(values) == 3, 5.0)


async def test_until_gives_up_when_time_is_over() -> None:
    assert not await Notice().until(lambda: False, 0.01)


async def test_a_change_before_the_wait_counts() -> None:
    """Who looks, works a while and then waits must not sleep through what happened meanwhile."""
    notice = Notice()
    seen = notice.count
    notice.notify()

    async with asyncio.timeout(1.0):
        await notice.after(seen)

"""Waiters wake at each change."""

import asyncio

from services.planner.change_event import ChangeEvent


async def test_until_looks_again_after_each_change() -> None:
    notice, values = ChangeEvent(), []

    async def change() -> None:
        for value in range(3):
            await asyncio.sleep(0)
            values.append(value)
            notice.notify()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(change())
        assert await notice.until(lambda: len(values) == 3, 5.0)


async def test_until_gives_up_when_time_is_over() -> None:
    assert not await ChangeEvent().until(lambda: False, 0.01)


async def test_a_change_before_the_wait_counts() -> None:
    """A task that looks, works a while and then waits must not miss a change meanwhile."""
    notice = ChangeEvent()
    seen = notice.count
    notice.notify()

    async with asyncio.timeout(1.0):
        await notice.after(seen)

"""Deadlines: a due item is reported once and not early, a dropped one never."""

import asyncio
import gc
import time
import weakref

from services.router.runtime.deadline_timer import TICK_S, DeadlineTimer


class Item:
    """Something that can be seen to be forgotten."""


async def test_items_are_due_once_in_order_and_not_before_their_time() -> None:
    reported: list[tuple[str, float]] = []
    done = asyncio.Event()

    def due(item: str) -> None:
        reported.append((item, time.monotonic()))
        if item == "last":
            done.set()

    ticks = DeadlineTimer(due)
    now_s = time.monotonic()
    at_s = {"last": now_s + 4 * TICK_S, "first": now_s, "second": now_s + 2 * TICK_S}
    for key, (item, when_s) in enumerate(at_s.items()):
        ticks.add(when_s, key, item, now_s)
    await done.wait()

    assert [item for item, _ in reported] == ["first", "second", "last"]
    assert all(when_s >= at_s[item] for item, when_s in reported)


async def test_dropped_items_are_neither_due_nor_kept() -> None:
    """Neighbours of the same tick are due; dropping an item again, or too late, does nothing."""
    reported: asyncio.Queue[Item] = asyncio.Queue()
    ticks = DeadlineTimer(reported.put_nowait)
    dropped, kept = Item(), Item()
    gone = weakref.ref(dropped)
    now_s = time.monotonic()
    ticks.add(now_s, 1, dropped, now_s)
    ticks.add(now_s, 2, kept, now_s)

    ticks.drop(now_s, 1)
    ticks.drop(now_s, 1)
    del dropped
    gc.collect()
    assert gone() is None

    assert await reported.get() is kept
    ticks.drop(now_s, 2)
    assert reported.empty()


async def test_many_items_share_the_timers_of_few_ticks() -> None:
    """A thousand items within one tick's time need two timers at most."""
    ticks = DeadlineTimer[int](lambda _: None)
    now_s = time.monotonic()

    for key in range(1000):
        ticks.add(now_s + key * TICK_S / 1000, key, key, now_s)

    assert len(ticks._ticks) <= 2

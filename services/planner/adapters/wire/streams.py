"""Peers' streams: read only while this service runs, and sent without gaps."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from cinquefoil.planner.v1.records import Plan
from services.planner.core.routing_table import Announcement


async def until(closing: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, or until `closing` is set; its errors are raised."""
    working = asyncio.create_task(work, name="streams.work")
    closed = asyncio.create_task(closing.wait(), name="streams.closing")
    try:
        await asyncio.wait((working, closed), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        closed.cancel()
        await asyncio.gather(working, closed, return_exceptions=True)


PAGE = 100
"""Plans fetched at a time, so that a reader that was away for weeks does not fill the memory."""

After = Callable[[int, int], Awaitable[Sequence[Plan]]]
"""Returns up to a number of stored plans above a version, in order of version."""


async def without_gaps(
    announced: AsyncIterator[Announcement], after: After, seen: int
) -> AsyncIterator[Announcement]:
    """Yield announcements, each preceded by the plans between it and the last one.

    Versions never go back. Every plan is stored before it is announced: the store has all that a
    slow reader, or one that was away, has missed; a stored plan waits here for its announcement.

    Args:
        announced: The newest announcement, repeatedly; may skip plans.
        after: Returns stored plans.
        seen: Newest version that the reader has; 0: none.
    """
    async for said in announced:
        newest = 0 if said.plan is None else said.plan.version
        while seen < newest - 1:
            page = [plan for plan in await after(seen, PAGE) if plan.version < newest]
            for plan in page:
                yield replace(said, plan=plan)
            seen = page[-1].version if page else newest - 1
        if newest >= seen:
            seen = newest
            yield said

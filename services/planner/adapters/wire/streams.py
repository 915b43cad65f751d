"""Peers' streams: read no longer than this service lives, and sent without gaps."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from cinquefoil.planner.v1.records import Plan
from services.planner.core.routing_table import Announcement


async def until(closing: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do `work` to its end, or until `closing` is set; what it raises is raised."""
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
"""Plans fetched at a time; a reader that was away for weeks must not fill the memory."""

After = Callable[[int, int], Awaitable[Sequence[Plan]]]
"""Returns at most so many stored plans above a version, in order of version."""


async def without_gaps(
    announced: AsyncIterator[Announcement], after: After, seen: int
) -> AsyncIterator[Announcement]:
    """Yield announcements, and before each the plans that lie between it and the last.

    Versions never go back. Every plan is stored before it is announced, so that the store has all
    that a slow reader, or one that was away, has missed; what is stored and not yet announced
    waits for its announcement.

    Args:
        announced: The newest announcement, again and again; may leave plans out.
        after: The stored plans.
        seen: The newest version that the reader knows; 0: none.
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

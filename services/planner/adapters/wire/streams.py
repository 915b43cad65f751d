"""Reading a peer's stream no longer than this service lives."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


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

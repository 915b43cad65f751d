"""Waiting for what other tasks and processes do."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.05


async def until(holds: Callable[[], bool | Awaitable[bool]], limit_s: float = 45.0) -> None:
    """Look again and again until something holds; no event marks it.

    Pauses grow, as a look is often a call of a service.

    Args:
        holds: Returns whether it does.
        limit_s: Time after which the test fails, s.
    """
    pause_s = _FIRST_PAUSE_S
    async with asyncio.timeout(limit_s):
        while True:
            found = holds()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(1.2 * pause_s, _LONGEST_PAUSE_S)

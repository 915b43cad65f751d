"""An open loop: requests are sent when they are due, whatever becomes of those before."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from services.kit.clock import Clock


async def send_each(
    due_s: Iterable[float], send: Callable[[int, float], Awaitable[None]], clock: Clock
) -> None:
    """Start `send` for each time that is due, and return when all have ended.

    A slow answer delays no later request. Latency counts from the moment planned, so that a late
    start counts against who is measured, too.

    Args:
        due_s: Times from now, s, rising.
        send: Called with a request's number and its due time by `clock.monotonic`; its task fails
            with it.
        clock: Real time.
    """
    start_s = clock.monotonic()
    async with asyncio.TaskGroup() as requests:
        for number, at_s in enumerate(due_s):
            planned_s = start_s + at_s
            await clock.sleep(planned_s - clock.monotonic())
            requests.create_task(_ended(send, number, planned_s), name=f"load.{number}")


async def _ended(
    send: Callable[[int, float], Awaitable[None]], number: int, planned_s: float
) -> None:
    await send(number, planned_s)

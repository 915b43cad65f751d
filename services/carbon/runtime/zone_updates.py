"""The loop that takes one zone from change to change."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from services.carbon.core.monitor import Monitor
from services.carbon.runtime.grid_state import GridState
from services.kit.clock import Clock


async def follow(
    monitor: Monitor, state: GridState, grid_clock: Clock, heard: asyncio.Event | None = None
) -> None:
    """Put each change of a zone on the state when grid time gets there; end after the last.

    Args:
        monitor: The zone's.
        state: Where to put it.
        grid_clock: Tells grid time.
        heard: Set by live sources when they have heard something; then there is no last change.
    """
    while True:
        change = monitor.next_change()
        if heard is None:
            if change is None:
                return
            await grid_clock.sleep((change - grid_clock.now()).total_seconds())
        else:
            await _first(heard, change, grid_clock)
            heard.clear()
        monitor.advance(grid_clock.now())
        latest = monitor.latest
        if latest is not None and latest != state.latest.get(monitor.zone):
            state.publish(latest)


async def _first(heard: asyncio.Event, change: datetime | None, grid_clock: Clock) -> None:
    """Wait until something is heard, or until `change`."""
    async with asyncio.TaskGroup() as tasks:
        waits: list[asyncio.Task[Any]] = [tasks.create_task(heard.wait(), name="carbon.heard")]
        if change is not None:
            delay_s = (change - grid_clock.now()).total_seconds()
            waits.append(tasks.create_task(grid_clock.sleep(delay_s), name="carbon.change"))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

"""Publishes the changes of one zone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from services.carbon.core.monitor import Monitor
from services.carbon.runtime.grid_state import GridState
from services.kit.clock import Clock


async def update_zone(
    monitor: Monitor, state: GridState, grid_clock: Clock, updated: asyncio.Event | None = None
) -> None:
    """Publish each change of a zone when it is due; return after the last one.

    Args:
        monitor: Monitor of the zone.
        state: Where to publish.
        grid_clock: Grid time.
        updated: Set by live sources after each reading; with it there is no last change.
    """
    while True:
        change = monitor.next_change()
        waits: list[Coroutine[Any, Any, object]] = []
        if change is not None:
            waits.append(grid_clock.sleep((change - grid_clock.now()).total_seconds()))
        elif updated is None:
            return
        if updated is None:
            await waits[0]
        else:
            await _first([*waits, updated.wait()])
            updated.clear()
        monitor.advance(grid_clock.now())
        latest = monitor.latest
        if latest is not None and latest != state.latest.get(monitor.zone):
            state.publish(latest)


async def _first(waits: list[Coroutine[Any, Any, object]]) -> None:
    """Wait until one of the coroutines has ended, and cancel the others."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each, name="carbon.wait") for each in waits]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()

"""One day, as it passes: the load is sent, the grid and both planners are read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from services.cli.demo.grid_clock import Grid, follow
from services.cli.demo.load_generator import Images, send
from services.cli.demo.sample import Reading, read
from services.cli.demo.suite_run import Side
from services.kit.clock import Clock
from services.kit.errors import ServiceError
from services.local.demo.load import Arrival

_READ_EVERY_S = 0.2
# Agents report energy every half second: after it, the last answer's energy is in the account.
_SETTLE_S = 0.7


async def pass_day(
    sides: Mapping[str, Side],
    grid: Grid,
    plan: Sequence[Arrival],
    clock: Clock,
    show: Callable[[float], None],
) -> None:
    """Send the whole load to every side; return when each request has ended.

    Args:
        sides: By suite; their tallies and readings are filled.
        grid: Is kept up to date meanwhile.
        plan: The load.
        clock: Real time.
        show: Called several times a second with the time since the start, s.
    """
    images = Images.held_out()
    first = next(iter(sides.values()))
    async with asyncio.TaskGroup() as tasks:
        following = follow(grid, first.clients, clock)
        follower = tasks.create_task(following, name="demo.grid")
        await _until_told(grid, clock)
        start_s = clock.monotonic()
        await _read_all(sides, grid, start_s, start_s)
        watchers = [
            tasks.create_task(_watch(side, grid, clock, start_s), name=f"demo.{name}.read")
            for name, side in sides.items()
        ]
        watchers.append(tasks.create_task(_show(show, clock, start_s), name="demo.show"))
        await send(plan, images, sides, clock)
        for task in watchers:
            task.cancel()
        await clock.sleep(_SETTLE_S)
        await _read_all(sides, grid, start_s, clock.monotonic())
        follower.cancel()


async def _read_all(sides: Mapping[str, Side], grid: Grid, start_s: float, now_s: float) -> None:
    for side in sides.values():
        side.readings.append(await _read(side, grid, start_s, now_s))


async def _read(side: Side, grid: Grid, start_s: float, now_s: float) -> Reading:
    return await read(side.clients, grid.now(now_s), now_s - start_s)


async def _watch(side: Side, grid: Grid, clock: Clock, start_s: float) -> None:
    while True:
        await clock.sleep(_READ_EVERY_S)
        try:
            one = await _read(side, grid, start_s, clock.monotonic())
        except ServiceError:
            continue  # it is busy or restarts: the next reading has its account again
        side.readings.append(one)


async def _show(show: Callable[[float], None], clock: Clock, start_s: float) -> None:
    while True:
        show(clock.monotonic() - start_s)
        await clock.sleep(0.25)


async def _until_told(grid: Grid, clock: Clock) -> None:
    while not grid.changes:
        await clock.sleep(0.02)

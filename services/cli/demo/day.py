"""One day, as it passes: the load is sent, the grid and both planners are read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from services.cli.demo.grid_clock import Grid, follow
from services.cli.demo.load_generator import Images, send
from services.cli.demo.sample import SuiteRun, take_sample
from services.kit.clock import Clock
from services.kit.errors import ServiceError
from services.local.demo.load import Arrival

_SAMPLE_EVERY_S = 0.2
# Agents report energy every half second: after it, the last answer's energy is in the account.
_SETTLE_S = 0.7


async def pass_day(
    runs: Mapping[str, SuiteRun],
    grid: Grid,
    plan: Sequence[Arrival],
    clock: Clock,
    show: Callable[[float], None],
) -> None:
    """Send the whole load to every run; return when each request has ended.

    Args:
        runs: By suite; their stats and samples are filled.
        grid: Is kept up to date meanwhile.
        plan: The load.
        clock: Real time.
        show: Called several times a second with the time since the start, s.
    """
    images = Images.held_out()
    first = next(iter(runs.values()))
    async with asyncio.TaskGroup() as tasks:
        following = follow(grid, first.clients, clock)
        follower = tasks.create_task(following, name="demo.grid")
        await _until_known(grid, clock)
        start_s = clock.monotonic()
        for run in runs.values():
            await _sample(run, grid, start_s, start_s)
        watchers = [
            tasks.create_task(_watch(run, grid, clock, start_s), name=f"demo.{name}.watch")
            for name, run in runs.items()
        ]
        watchers.append(tasks.create_task(_show(show, clock, start_s), name="demo.show"))
        await send(plan, images, runs, clock)
        for task in watchers:
            task.cancel()
        await clock.sleep(_SETTLE_S)
        for run in runs.values():
            await _sample(run, grid, start_s, clock.monotonic())
        follower.cancel()


async def _sample(run: SuiteRun, grid: Grid, start_s: float, now_s: float) -> None:
    run.samples.append(await take_sample(run.clients, grid.now(now_s), now_s - start_s))


async def _watch(run: SuiteRun, grid: Grid, clock: Clock, start_s: float) -> None:
    while True:
        await clock.sleep(_SAMPLE_EVERY_S)
        with suppress(ServiceError):  # busy, or restarting: the next sample has its account again
            await _sample(run, grid, start_s, clock.monotonic())


async def _show(show: Callable[[float], None], clock: Clock, start_s: float) -> None:
    while True:
        show(clock.monotonic() - start_s)
        await clock.sleep(0.25)


async def _until_known(grid: Grid, clock: Clock) -> None:
    while not grid.changes:
        await clock.sleep(0.02)

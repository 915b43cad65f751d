"""Measures variants of models on one GPU, point after point."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from services.gpuagent.profiling.core.samples import Effort
from services.gpuagent.profiling.core.sweep import Point, Sweep
from services.gpuagent.profiling.profiler.load_driver import OpenChannel, drive, drive_texts
from services.gpuagent.profiling.profiler.logbook import Logbook
from services.gpuagent.profiling.profiler.rig import DID_NOT_RUN, Rig
from services.kit.clock import Clock
from services.kit.errors import FailedPrecondition
from services.kit.profiles.core.measurement import Measurement
from services.kit.rpc import dial


@dataclass(frozen=True, slots=True)
class ProfileProgress:
    """Progress of a variant's measurement.

    Attributes:
        point: The next point; None: it is done.
        last: The newest measurement.
        done: Points measured, those of an earlier run included.
        remaining: Points that are still worth measuring.
    """

    point: Point | None
    last: Measurement | None
    done: int
    remaining: int


@dataclass(frozen=True, slots=True)
class Profiler:
    """Measures on one GPU.

    Attributes:
        rig: The GPU.
        effort: How long each point is measured.
        clock: Time.
        open_channel: Dials a worker.
    """

    rig: Rig
    effort: Effort
    clock: Clock
    open_channel: OpenChannel = dial

    async def run(
        self,
        model: str,
        variant: str,
        sweep: Sweep,
        book: Logbook,
        seen: Callable[[ProfileProgress], None],
    ) -> None:
        """Measure what remains of a variant's sweep.

        Args:
            model: Of the agent's deployment.
            variant: Of the model.
            sweep: What is known so far; it learns.
            book: Where results go, each before the next point begins.
            seen: Called before each point, and at the end.

        Raises:
            ServiceError: The agent cannot go on.
        """
        last: Measurement | None = None
        while remaining := sweep.remaining():
            seen(ProfileProgress(remaining[0], last, len(sweep.measured), len(remaining)))
            last = await self._measure(model, variant, remaining[0])
            await _written(book, last)
            sweep.add(last)
        seen(ProfileProgress(None, last, len(sweep.measured), 0))

    async def _measure(self, model: str, variant: str, point: Point) -> Measurement:
        gpu = self.rig.gpu.type
        clock_ratio = point.clock_mhz / gpu.max_clock_mhz if point.clock_mhz else 1.0
        measurement = Measurement(gpu=gpu.name, clock_ratio=clock_ratio, **asdict(point))
        try:
            endpoints = await self.rig.set_up(model, variant, point)
            if point.prompt_tokens:
                return await drive_texts(
                    endpoints[0], measurement, self.effort, self.clock, self.open_channel
                )
            return await drive(endpoints, measurement, self.effort, self.clock, self.open_channel)
        except FailedPrecondition as error:
            if error.reason not in DID_NOT_RUN:
                raise
            return replace(measurement, reason=error.message)


async def _written(book: Logbook, measurement: Measurement) -> None:
    """Write to the end, cancelled or not: what is measured is in the book, or it is not."""
    writing = asyncio.create_task(asyncio.to_thread(book.write, measurement), name="profiler.write")
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await writing
        raise

"""One day, as it passes: the load is sent, the grid and both planners are read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.grpc_service_pb2 import ModelInferRequest
from services.cli.demo.sample import Grid, SuiteRun, follow, take_sample
from services.cli.load.open_loop import send_each
from services.cli.tensors import outputs_of, request_of
from services.kit.clock import Clock
from services.kit.errors import ServiceError
from services.local.demo.digits import held_out
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
    images = Images.held_out({arrival.model for arrival in plan})
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


TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Images:
    """Requests ready to send, by model one per held-out image, and the right answers."""

    requests: Mapping[str, tuple[ModelInferRequest, ...]]
    labels: NDArray[np.int64]

    @classmethod
    def held_out(cls, models: Iterable[str]) -> Images:
        """Return a request to each model for each held-out digit."""
        images, labels = held_out()
        requests = {
            model: tuple(request_of(model, "image", "FP32", image[None]) for image in images)
            for model in models
        }
        return cls(requests, labels)


async def send(
    plan: Sequence[Arrival],
    images: Images,
    runs: Mapping[str, SuiteRun],
    clock: Clock,
) -> None:
    """Send every arrival to every run, and return when each request has ended."""

    async def to_each(number: int, planned_s: float) -> None:
        arrival = plan[number]
        async with asyncio.TaskGroup() as requests:
            for name, run in runs.items():
                run.stats[arrival.model].sent += 1
                one = _one(run, images, arrival, planned_s, clock)
                requests.create_task(one, name=f"demo.{name}.{number}")

    await send_each((arrival.at_s for arrival in plan), to_each, clock)


async def _one(run: SuiteRun, images: Images, sent: Arrival, due_s: float, clock: Clock) -> None:
    stats = run.stats[sent.model]
    try:
        response: Any = await run.clients.inference.ModelInfer(
            images.requests[sent.model][sent.image], timeout=TIMEOUT_S
        )
        label = int(outputs_of(response)["label"][0])
    except ServiceError as error:
        stats.lose(f"{error.status}: {error.message}")
    except (KeyError, ValueError, IndexError) as error:
        stats.lose(f"unreadable answer: {error!r}")
    else:
        latency_s = clock.monotonic() - due_s
        stats.answer(latency_s, correct=label == int(images.labels[sent.image]))

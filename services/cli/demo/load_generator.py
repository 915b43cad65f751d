"""Sends the load to several routers at the same moments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.grpc_service_pb2 import ModelInferRequest
from services.cli.demo.sample import SuiteRun
from services.cli.tensors import outputs_of, request_of
from services.kit.clock import Clock
from services.kit.errors import ServiceError
from services.local.demo.demo_models import MODEL
from services.local.demo.digits import held_out
from services.local.demo.load import Arrival

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Images:
    """Requests ready to send, one per held-out image, and the right answers."""

    requests: tuple[ModelInferRequest, ...]
    labels: NDArray[np.int64]

    @classmethod
    def held_out(cls) -> Images:
        """Return a request for each held-out digit."""
        images, labels = held_out()
        requests = tuple(request_of(MODEL, "image", "FP32", image[None]) for image in images)
        return cls(requests, labels)


async def send(
    plan: Sequence[Arrival],
    images: Images,
    runs: Mapping[str, SuiteRun],
    clock: Clock,
) -> None:
    """Send every arrival to every run, and return when each request has ended.

    Open loop: a slow answer never delays a later request. Latency counts from the planned moment,
    so a late start is the suite's loss too.
    """
    start_s = clock.monotonic()
    async with asyncio.TaskGroup() as requests:
        for number, arrival in enumerate(plan):
            due_s = start_s + arrival.at_s
            await clock.sleep(due_s - clock.monotonic())
            for name, run in runs.items():
                run.stats.sent += 1
                one = _one(run, images, arrival.image, due_s, clock)
                requests.create_task(one, name=f"demo.{name}.{number}")


async def _one(run: SuiteRun, images: Images, image: int, due_s: float, clock: Clock) -> None:
    stats = run.stats
    try:
        response: Any = await run.clients.inference.ModelInfer(
            images.requests[image], timeout=TIMEOUT_S
        )
        label = int(outputs_of(response)["label"][0])
    except ServiceError as error:
        stats.lose(f"{error.status}: {error.message}")
    except (KeyError, ValueError, IndexError) as error:
        stats.lose(f"unreadable answer: {error!r}")
    else:
        latency_s = clock.monotonic() - due_s
        stats.answer(latency_s, correct=label == int(images.labels[image]))

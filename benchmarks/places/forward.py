"""Cost of forwarding: requests through the home router, beside some that go there themselves.

Two suites without delay between them. Blocks of requests alternate, one request at a time, so that
other work on the machine meets both alike. Wall time has the loopback's round trip in it; processor
time is that of the home's router, less what it takes while nothing is sent.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import psutil

from benchmarks.places.live import MODEL_FILE, Load, Region, join_up, served
from cinquefoil.regions.v1.regions_pb2 import ListRegionsRequest
from inference import grpc_service_pb2 as oip
from services.cli.client import Clients
from services.cli.load.requests import requests_for
from services.cli.tensors import parameters_of
from services.kit.clock import RealClock
from services.local.demo import model_family

_BLOCK: Final = 40
_GAP_S: Final = 0.05
_IDLE_S: Final = 10.0
_CLOCK: Final = RealClock()


@dataclass(slots=True)
class Course:
    """Requests on one path. Attributes: latencies_s, cpu_s (of home's router), length_s, sent."""

    latencies_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    length_s: float = 0.0
    sent: int = 0


async def run(blocks: int) -> list[dict[str, Any]]:
    """Measure each path in so many blocks."""
    with TemporaryDirectory(prefix="cinquefoil-forward-") as place:
        root = Path(place)
        (root / MODEL_FILE).write_bytes(model_family.build("linear"))
        regions = {name: Region(name, root / name) for name in ("home", "north")}
        async with AsyncExitStack() as stack:
            await join_up(stack, regions, root, relayed=False)
            suite, home = await stack.enter_async_context(served(regions["home"]))
            described = await home.inference.ModelMetadata(oip.ModelMetadataRequest(name="digits"))
            load = Load(home, requests_for(described, None))
            router = psutil.Process(suite.processes["router"])
            at_home, forwarded, direct = Course(), Course(), Course()
            for _ in range(blocks):
                await _block(load, home, "home", router, at_home)
            _, far = await stack.enter_async_context(served(regions["north"]))
            await _until_it_leaves(load)
            idle_share = await _idle(router)
            for turn in range(blocks):
                paths = [(home, "north", forwarded), (far, "", direct)]
                for clients, region, course in paths if turn % 2 else paths[::-1]:
                    await _block(load, clients, region, router, course)
            found = await home.regions.ListRegions(ListRegionsRequest())
            trip_ms = 1e3 * found.regions[1].round_trip_s
    rows = [("at home", at_home), ("forwarded", forwarded), ("to the far region", direct)]
    return [_row(name, course, idle_share, trip_ms) for name, course in rows]


async def _until_it_leaves(load: Load) -> None:
    sending = asyncio.create_task(load.run())
    await load.comes_from("north")
    sending.cancel()
    with suppress(asyncio.CancelledError):
        await sending


async def _idle(router: psutil.Process) -> float:
    """Return the processor time of a router to which nothing is sent, s a second."""
    before_s = _cpu_s(router)
    await asyncio.sleep(_IDLE_S)
    return (_cpu_s(router) - before_s) / _IDLE_S


async def _block(
    load: Load, clients: Clients, region: str, router: psutil.Process, course: Course
) -> None:
    """Send some requests, and count those that a region answered; "": by whichever."""
    began_s, before_s = _CLOCK.monotonic(), _cpu_s(router)
    for number in range(_BLOCK):
        message = load.requests.messages[number % len(load.requests.messages)]
        sent_s = _CLOCK.monotonic()
        answer: oip.ModelInferResponse = await clients.inference.ModelInfer(message, timeout=10.0)
        course.sent += 1
        if region in {"", parameters_of(answer).get("region", "home")}:
            course.latencies_s.append(_CLOCK.monotonic() - sent_s)
        await asyncio.sleep(_GAP_S)
    course.cpu_s += _cpu_s(router) - before_s
    course.length_s += _CLOCK.monotonic() - began_s


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _row(name: str, course: Course, idle_share: float, trip_ms: float) -> dict[str, Any]:
    p10, p50 = np.percentile(course.latencies_s, (10, 50)) * 1e3
    cpu_s = course.cpu_s - idle_share * course.length_s
    return {
        "path": name,
        "sent": course.sent,
        "so answered": len(course.latencies_s),
        "p10_ms": float(p10),
        "p50_ms": float(p50),
        "router_cpu_us": 1e6 * max(cpu_s, 0.0) / course.sent,
        "round_trip_ms": trip_ms,
        "load_average": os.getloadavg()[0],
    }

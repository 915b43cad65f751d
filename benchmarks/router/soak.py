"""Plan changes every few seconds under a steady load: nothing is lost, nothing grows.

At each change one worker leaves and another comes. Those that leave do it by turns as a rollout has
it (the table first, then the worker) and as a crash has it (the worker first, with requests on it).
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median

import numpy as np

from benchmarks.router.open_loop import poisson
from benchmarks.router.site import Running, Site, site

CHANGE_S = 5.0
WORKERS, CREDITS, SERVICE_S = 3, 4, 0.02  # 600 req/s, 400 while one is gone
RATE_RPS = 200.0
SLO_S, TIMEOUT_S = 0.25, 10.0
SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Soak:
    """Figures of a soak test.

    Attributes:
        duration_s: Length of the test, s.
        requests: Sent.
        lost: Not answered, or not with their own answer.
        late: Answered after the objective.
        changes: Plan changes.
        crashes: Of them, with a worker that died under load.
        p99_ms: Of the answers.
        rss_mib: The router's resident memory, median of the last quarter of the time.
        growth: Of it, over the second quarter's: the first one fills caches and pools.
        slope_mib_per_h: Of a line through the last three quarters.
        most_in_flight: Most requests that any worker held, of CREDITS.
    """

    duration_s: float
    requests: int
    lost: dict[str, int]
    late: int
    changes: int
    crashes: int
    p99_ms: float
    rss_mib: float
    growth: float
    slope_mib_per_h: float
    most_in_flight: int


async def soak(folder: Path, duration_s: float) -> Soak:
    """Run it."""
    async with site(folder, SLO_S, CREDITS, SERVICE_S) as (here, first):
        workers = deque([first])
        while len(workers) < WORKERS:
            workers.append(await here.worker(CREDITS, SERVICE_S))
        await here.route(*workers)
        rss_mib: list[float] = []
        changes, seen = Counter[str](), list(workers)
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(_meter(here, rss_mib), name="soak.meter"),
                tasks.create_task(_change(here, workers, seen, changes), name="soak.change"),
            ]
            outcomes = await poisson(here.router.port, RATE_RPS, duration_s, TIMEOUT_S)
            for task in background:
                task.cancel()
    latencies_s = [each.latency_s for each in outcomes if each.status == "OK"]
    lost = Counter(each.status for each in outcomes if each.status != "OK")
    return Soak(
        duration_s=duration_s,
        requests=len(outcomes),
        lost=dict(lost),
        late=sum(latency_s > SLO_S for latency_s in latencies_s),
        changes=changes.total(),
        crashes=changes["crash"],
        p99_ms=float(np.percentile(latencies_s, 99)) * 1e3,
        rss_mib=_quarter(rss_mib, 3),
        growth=growth(rss_mib),
        slope_mib_per_h=_slope_mib_per_h(rss_mib),
        most_in_flight=max(each.worker.most for each in seen),
    )


async def _change(
    here: Site, workers: deque[Running], seen: list[Running], changes: Counter[str]
) -> None:
    """Change the plan, until cancelled."""
    due_s = time.monotonic()
    while True:
        due_s += CHANGE_S
        await asyncio.sleep(due_s - time.monotonic())
        new = await here.worker(CREDITS, SERVICE_S)
        seen.append(new)
        workers.append(new)
        old = workers.popleft()
        kind = ("rollout", "crash")[changes.total() % 2]
        if kind == "crash":
            await old.server.stop(None)
        await here.route(*workers)
        if kind == "rollout":
            await old.server.stop(TIMEOUT_S)
        changes[kind] += 1


async def _meter(here: Site, rss_mib: list[float]) -> None:
    while True:
        rss_mib.append(here.router.rss_bytes() / 2**20)
        await asyncio.sleep(SAMPLE_S)


def growth(rss_mib: Sequence[float]) -> float:
    """Return how much more memory the last quarter of the time has than the second, 0 for none."""
    return _quarter(rss_mib, 3) / _quarter(rss_mib, 1) - 1


def _quarter(values: Sequence[float], number: int) -> float:
    """Return the median of a quarter of the values."""
    length = max(1, len(values) // 4)
    return median(values[number * length : (number + 1) * length] or values[-1:])


def _slope_mib_per_h(rss_mib: Sequence[float]) -> float:
    settled = rss_mib[len(rss_mib) // 4 :]
    times_h = [index * SAMPLE_S / 3600 for index in range(len(settled))]
    return linear_regression(times_h, settled).slope

"""Twice as many requests as the workers can serve, each with the objective as its deadline.

A router that queues first come, first served hands the workers requests that are about to expire:
all capacity is spent, none of it in time. What counts is goodput: answers within the objective.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.router.open_loop import closed, poisson
from benchmarks.router.site import site

SLO_S = 0.25
SERVICE_S, CREDITS = 0.04, 12  # 300 req/s: far below what the router's own core can do
TIMES = 2.0
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Overload:
    """Figures of an overload.

    Attributes:
        capacity_rps: Measured: answers with always enough to do.
        offered_rps: Sent.
        goodput_rps: Answers within the objective.
        p99_ms: Of the answers.
        refused_p99_ms: Time until a refusal came; 0: none came.
        statuses: Share of the requests, by what became of them.
        most_in_flight: Most requests that the worker held; its credits say what it may.
    """

    capacity_rps: float
    offered_rps: float
    goodput_rps: float
    p99_ms: float
    refused_p99_ms: float
    statuses: dict[str, float]
    most_in_flight: int

    @property
    def share(self) -> float:
        """Return goodput over capacity."""
        return self.goodput_rps / self.capacity_rps


async def overload(folder: Path, seconds: float) -> Overload:
    """Measure the capacity, then offer twice as much for so long."""
    async with site(folder, SLO_S, CREDITS, SERVICE_S) as (here, running):
        port = here.router.port
        capacity_rps = await closed(port, 2 * CREDITS, seconds / 2)
        found = await poisson(port, TIMES * capacity_rps, seconds, timeout_s=SLO_S)
        counted = [each for each in found if each.sent_s >= SETTLE_S]
        length_s = seconds - SETTLE_S
        good = [e for e in counted if e.status == "OK" and e.latency_s <= SLO_S]
        answered = [each.latency_s for each in counted if each.status == "OK"]
        refused = [each.latency_s for each in counted if each.status == "RESOURCE_EXHAUSTED"]
        statuses = Counter(each.status for each in counted)
        return Overload(
            capacity_rps=capacity_rps,
            offered_rps=len(counted) / length_s,
            goodput_rps=len(good) / length_s,
            p99_ms=_p99_ms(answered),
            refused_p99_ms=_p99_ms(refused),
            statuses={name: n / len(counted) for name, n in statuses.most_common()},
            most_in_flight=running.worker.most,
        )


def _p99_ms(latencies_s: list[float]) -> float:
    return float(np.percentile(latencies_s, 99)) * 1e3 if latencies_s else 0.0

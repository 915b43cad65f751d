"""Jobs on slots in virtual time: what the router's own dispatcher does with them, and others.

A slot serves one job at a time and is never taken from it. All times are s from the start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import numpy as np
from numpy.typing import NDArray

from services.kit.config import Discipline
from services.router.core.dispatch.decisions import Decision, Send
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import Instance, Limits, ModelRoutes, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Hello

Seconds = NDArray[np.float64]
Classes = NDArray[np.int64]

_ANY = 2**60
_INSTANCE = Instance("one:1", "one", "m", "v", 1.0, share=1.0, credits=1)


@dataclass(frozen=True, slots=True)
class Jobs:
    """A stream of jobs.

    Attributes:
        arrivals_s: Arrival times, s, ascending, shape (jobs,).
        services_s: Times that jobs keep their slots, s, shape (jobs,).
        classes: Predicted length classes, 0..9, shape (jobs,).
    """

    arrivals_s: Seconds
    services_s: Seconds
    classes: Classes


def routed(jobs: Jobs, slots: int, overtaking_s: float, discipline: Discipline = "ssjf") -> Seconds:
    """Return times in the system as the router serves them; predictions come at once.

    Args:
        jobs: The stream.
        slots: Credits of the one instance.
        overtaking_s: As `models.<m>.overtaking_s`.
        discipline: "ssjf" or "fcfs".
    """
    return _Router(jobs, slots, overtaking_s, discipline).run()


class _Router:
    """Carries out what a dispatcher decides."""

    def __init__(self, jobs: Jobs, slots: int, overtaking_s: float, discipline: Discipline) -> None:
        routes = ModelRoutes("m", inf, 95.0, "idle_longest", (_INSTANCE,), discipline)
        limits = Limits(
            max_queue=_ANY,
            max_queue_mib=_ANY,
            fair_clients=False,
            overtaking_s=overtaking_s,
        )
        self._core = Dispatcher(routes, limits)
        self._core.swap(routes)
        self._core.up(_INSTANCE.id, Hello(slots, b""))
        self._jobs = jobs
        self._services_s = jobs.services_s.tolist()
        self._running: list[tuple[float, int]] = []
        self._times_s = np.empty(len(self._services_s))

    def run(self) -> Seconds:
        """Serve all."""
        classes = self._jobs.classes.tolist()
        for number, arrival_s in enumerate(self._jobs.arrivals_s.tolist()):
            self._finish_until(arrival_s)
            pending = PendingRequest(Request(number, "m", b"", arrival_s, inf))
            self._start(self._core.offer(pending), arrival_s)
            if pending.holder is None:
                self._core.predict_length(pending, classes[number])
        self._finish_until(inf)
        return self._times_s

    def _finish_until(self, limit_s: float) -> None:
        while self._running and self._running[0][0] <= limit_s:
            now_s, number = heappop(self._running)
            self._times_s[number] = now_s - self._jobs.arrivals_s[number]
            decisions = self._core.result(_INSTANCE.id, number, now_s=now_s)
            self._start(decisions, now_s)

    def _start(self, decisions: Sequence[Decision], now_s: float) -> None:
        for decision in decisions:
            if isinstance(decision, Send):
                number = decision.pending.request.number
                heappush(self._running, (now_s + self._services_s[number], number))


def ranked(jobs: Jobs, slots: int, ranks: Seconds) -> Seconds:
    """Return times in the system where the job of least rank, known at arrival, goes next."""
    arrivals, services = jobs.arrivals_s.tolist(), jobs.services_s.tolist()
    order = ranks.tolist()
    times_s = np.empty(len(arrivals))
    free_s = [0.0] * slots
    waiting: list[tuple[float, int]] = []
    coming = 0
    for _ in arrivals:
        now_s = heappop(free_s)
        if not waiting:
            now_s = max(now_s, arrivals[coming])
        while coming < len(arrivals) and arrivals[coming] <= now_s:
            heappush(waiting, (order[coming], coming))
            coming += 1
        number = heappop(waiting)[1]
        heappush(free_s, now_s + services[number])
        times_s[number] = now_s + services[number] - arrivals[number]
    return times_s

"""The waiting room of one model: who may wait, in which order, and who waits in vain."""

from __future__ import annotations

from services.kit.errors import DeadlineExceeded, ResourceExhausted
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.dispatch.overload import SHED_AT, Overload
from services.router.core.instance_state import InstanceState
from services.router.core.model import Limits, ModelRoutes, Request
from services.router.core.queue.byte_budget import ByteBudget
from services.router.core.queue.disciplines import DISCIPLINES
from services.router.core.queue.request_queue import Queue


class Admission:
    """A bounded queue that knows about how long one waits in it.

    Attributes:
        queue: Who waits.
        suspects: Of those that came back: the ones that a worker died with. They go first, in
            order of arrival.
        overload: Whether that is too long.
    """

    def __init__(self, routes: ModelRoutes, limits: Limits, byte_budget: ByteBudget) -> None:
        self.queue = Queue(DISCIPLINES[routes.discipline], byte_budget=byte_budget)
        self.suspects = Queue(byte_budget=byte_budget)
        self.overload = Overload()
        self._routes = routes
        self._limits = limits
        self._byte_budget = byte_budget

    def arrange(self, routes: ModelRoutes) -> None:
        """Follow the routes' discipline; under pressure clients take turns."""
        self._routes = routes
        fair = self._limits.fair_clients and self.overload.on
        self.queue.arrange(DISCIPLINES[routes.discipline], fair=fair)

    def admit(self, request: Request, pool: InstancePool, now_s: float) -> Request | None:
        """Let a request wait.

        Returns:
            Who had to make room for it; None: nobody.

        Raises:
            ResourceExhausted: It cannot be answered in time, or there is no room. Says when there
                will be.
        """
        capacity = pool.capacity(now_s, self._routes.slo_latency_s)
        rate_rps = capacity.rate_rps
        if rate_rps > 0:
            self._check_in_time(request, rate_rps, capacity.likely_s, now_s)
        size_bytes = len(request.body)
        room_bytes = self._limits.max_queue_bytes - self.queue.size_bytes
        if size_bytes > room_bytes:
            raise self._full("QUEUE_BYTES_FULL", "bytes wait", self.queue.size_bytes, rate_rps)
        if not self._byte_budget.fits(size_bytes):
            used = self._byte_budget.used_bytes
            raise self._full("MEMORY_FULL", "bytes wait, for all models,", used, rate_rps)
        displaced = None
        waiting = len(self.queue) + len(self.suspects)
        if waiting >= self._limits.max_queue:
            displaced = self.queue.behind(request)
            if displaced is None:
                raise self._full("QUEUE_FULL", "requests wait", waiting, rate_rps)
            self.queue.remove(displaced)
            self.overload.refused += 1
        self.queue.push(request)
        return displaced

    def overloads_at(self, pool: InstancePool, now_s: float) -> bool:
        """Tell whether the model comes under pressure, and note it."""
        if self.overload.on:
            return False
        slo_s = self._routes.slo_latency_s
        rate_rps = pool.capacity(now_s, slo_s).rate_rps
        if rate_rps <= 0 or len(self.queue) <= SHED_AT * slo_s * rate_rps:
            return False
        self.overload.begin(now_s)
        return True

    def displaced(self) -> ResourceExhausted:
        """Return why a request that waited had to go."""
        return ResourceExhausted(
            f"{self._limits.max_queue} requests wait for model {self._routes.model!r}, which is as"
            " many as may, and others go before this one",
            reason="QUEUE_FULL",
            retry_after_s=self._routes.slo_latency_s,
        )

    def too_late(
        self, request: Request, state: InstanceState, pool: InstancePool, now_s: float
    ) -> DeadlineExceeded | None:
        """Return why a request is not worth a lane's time any more; None: it is.

        What no instance could answer in time is not; what another could, this one may try. A lane
        without work takes any request whose deadline has not passed: nothing is lost, and it shows
        whether the lane is still as slow as it was.
        """
        left_s = request.deadline_s - now_s
        soonest_s = pool.capacity(now_s, self._routes.slo_latency_s).soonest_s
        if left_s > 0 and (left_s >= soonest_s or not state.in_flight):
            return None
        self.overload.refused += 1
        return DeadlineExceeded(
            f"the request waited {now_s - request.arrived_s:.3f} s for an instance of model"
            f" {self._routes.model!r}; it can no longer be answered in time",
            reason="DEADLINE",
            retry_after_s=self._routes.slo_latency_s,
        )

    def _check_in_time(
        self, request: Request, rate_rps: float, likely_s: float, now_s: float
    ) -> None:
        wait_s = (self.queue.ahead(request) + 1) / rate_rps
        late_s = now_s + wait_s + likely_s - request.deadline_s
        if late_s <= 0:
            return
        self.overload.refused += 1
        raise ResourceExhausted(
            f"model {self._routes.model!r} is overloaded: an answer would take about"
            f" {wait_s + likely_s:.3f} s, {late_s:.3f} s more than the deadline leaves",
            reason="OVERLOADED",
            retry_after_s=late_s,
        )

    def _full(self, reason: str, what: str, count: int, rate_rps: float) -> ResourceExhausted:
        self.overload.refused += 1
        # Without a rate: a queue that keeps its objective has been served once by then.
        served_s = len(self.queue) / rate_rps if rate_rps > 0 else 0.0
        return ResourceExhausted(
            f"{count} {what} for model {self._routes.model!r}, which is as many as may",
            reason=reason,
            retry_after_s=served_s or self._routes.slo_latency_s,
        )

"""Admission to one model's queue: which requests may wait, and which wait in vain."""

from services.kit.errors import DeadlineExceeded, FailedPrecondition, ResourceExhausted
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.dispatch.overload import SHED_AT, Overload
from services.router.core.instance_state import InstanceState
from services.router.core.model import Limits, ModelRoutes
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.request_queue import DISCIPLINES, ByteBudget, RequestQueue


class Admission:
    """A bounded queue with an estimate of the waiting time.

    Attributes:
        queue: The requests that wait.
        choosy: Those that require an accuracy, which not every instance has; in order of arrival.
        suspects: Of the requests that came back: those that a worker died with. They go first, in
            order of arrival.
        overload: Whether requests wait too long.
    """

    def __init__(self, routes: ModelRoutes, limits: Limits, byte_budget: ByteBudget) -> None:
        self.queue = RequestQueue(DISCIPLINES[routes.discipline], byte_budget=byte_budget)
        self.choosy = RequestQueue(byte_budget=byte_budget)
        self.suspects = RequestQueue(byte_budget=byte_budget)
        self.overload = Overload()
        self._routes = routes
        self._limits = limits
        self._byte_budget = byte_budget

    @property
    def depth(self) -> int:
        """Requests that wait."""
        return len(self.queue) + len(self.choosy) + len(self.suspects)

    def queue_of(self, pending: PendingRequest) -> RequestQueue:
        """Return where a request waits."""
        if pending.deaths:
            return self.suspects
        return self.choosy if pending.request.accuracy_floor else self.queue

    def remove(self, pending: PendingRequest) -> None:
        """Remove a request from where it waits; nothing happens where it does not."""
        for queue in (self.queue, self.choosy, self.suspects):
            queue.remove(pending)

    def clear(self) -> list[PendingRequest]:
        """Take every request."""
        return [*self.suspects.clear(), *self.choosy.clear(), *self.queue.clear()]

    def arrange(self, routes: ModelRoutes) -> None:
        """Follow the routes' discipline; while overloaded clients take turns."""
        self._routes = routes
        fair = self._limits.fair_clients and self.overload.active
        self.queue.arrange(DISCIPLINES[routes.discipline], fair=fair)

    def admit(
        self, pending: PendingRequest, pool: InstancePool, now_s: float
    ) -> PendingRequest | None:
        """Let a request wait.

        Returns:
            The request that had to make room for it; None: none had to.

        Raises:
            ResourceExhausted: It cannot be answered in time, or there is no room; the error says
                when there will be.
        """
        capacity = pool.capacity(now_s, self._routes.slo_latency_s)
        rate_rps = capacity.rate_rps
        if rate_rps > 0:
            self._check_in_time(pending, rate_rps, capacity.likely_s, now_s)
        size_bytes = len(pending.request.body)
        waiting_bytes = self.queue.size_bytes + self.choosy.size_bytes
        if size_bytes > self._limits.max_queue_bytes - waiting_bytes:
            raise self._full("QUEUE_BYTES_FULL", "bytes wait", waiting_bytes, rate_rps)
        if not self._byte_budget.fits(size_bytes):
            used = self._byte_budget.used_bytes
            raise self._full("MEMORY_FULL", "bytes wait, for all models,", used, rate_rps)
        displaced = None
        if self.depth >= self._limits.max_queue:
            displaced = self.queue.behind(pending)
            if displaced is None:
                raise self._full("QUEUE_FULL", "requests wait", self.depth, rate_rps)
            self.queue.remove(displaced)
            self.overload.refused += 1
        self.queue_of(pending).push(pending)
        return displaced

    def becomes_overloaded(self, pool: InstancePool, now_s: float) -> bool:
        """Return whether the model has just become overloaded, and note it."""
        if self.overload.active:
            return False
        slo_s = self._routes.slo_latency_s
        rate_rps = pool.capacity(now_s, slo_s).rate_rps
        if rate_rps <= 0 or len(self.queue) <= SHED_AT * slo_s * rate_rps:
            return False
        self.overload.begin(now_s)
        return True

    def displaced(self) -> ResourceExhausted:
        """Return why a waiting request had to make room for another."""
        return ResourceExhausted(
            f"{self._limits.max_queue} requests wait for model {self._routes.model!r}, the most"
            " that may, and others go before this one",
            reason="QUEUE_FULL",
            retry_after_s=self._routes.slo_latency_s,
        )

    def too_late(
        self, pending: PendingRequest, state: InstanceState, pool: InstancePool, now_s: float
    ) -> DeadlineExceeded | None:
        """Return why a request is not worth an instance's time any more; None: it is.

        It is not where no instance could answer in time; where another one could, this one may
        try. An idle instance takes any request whose deadline has not passed: no other request
        loses by that, and it shows whether the instance is still as slow as it was.
        """
        left_s = pending.request.deadline_s - now_s
        soonest_s = pool.capacity(now_s, self._routes.slo_latency_s).soonest_s
        if left_s > 0 and (left_s >= soonest_s or not state.in_flight):
            return None
        self.overload.refused += 1
        return DeadlineExceeded(
            f"the request waited {now_s - pending.request.arrived_s:.3f} s for an instance of model"
            f" {self._routes.model!r}; it can no longer be answered in time",
            reason="DEADLINE",
            retry_after_s=self._routes.slo_latency_s,
        )

    def _check_in_time(
        self, pending: PendingRequest, rate_rps: float, likely_s: float, now_s: float
    ) -> None:
        wait_s = (self.queue.ahead(pending) + 1) / rate_rps
        late_s = now_s + wait_s + likely_s - pending.request.deadline_s
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
            f"{count} {what} for model {self._routes.model!r}, the most that may",
            reason=reason,
            retry_after_s=served_s or self._routes.slo_latency_s,
        )


def too_inaccurate(routes: ModelRoutes, pending: PendingRequest) -> FailedPrecondition | None:
    """Return why no instance may answer a request that requires an accuracy; None: one may."""
    floor, instances = pending.request.accuracy_floor, routes.instances
    if not floor or not instances or any(each.accuracy >= floor for each in instances):
        return None
    known = sorted({each.variant: each.accuracy for each in instances}.items())
    has = ", ".join(f"{name} has {accuracy:g}" for name, accuracy in known)
    return FailedPrecondition(
        f"accuracy_floor is {floor:g}, and of model {routes.model!r} no variant that serves now is"
        f" as accurate: {has}",
        reason="ACCURACY_FLOOR",
        field="accuracy_floor",
    )

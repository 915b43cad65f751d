"""Admission to one model's queue, and refusal of requests that cannot be answered in time."""

from services.kit.errors import DeadlineExceeded, FailedPrecondition, ResourceExhausted
from services.kit.units import BYTES_PER_MIB
from services.router.core.dispatch.instance_pool import Capacity
from services.router.core.dispatch.overload import SHED_AT, Overload
from services.router.core.model import Limits, ModelRoutes
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.request_queue import DISCIPLINES, ByteBudget, RequestQueue


class Admission:
    """The requests that wait, within bounds.

    Attributes:
        queue: The requests that wait.
        choosy: Those that require an accuracy, which not every instance has; in order of arrival.
        returned: Of the requests that came back: those that a worker died with, or would not
            answer. They go first, in order of arrival.
        overload: Whether requests wait too long.
    """

    def __init__(self, routes: ModelRoutes, limits: Limits, byte_budget: ByteBudget) -> None:
        self.queue = RequestQueue(DISCIPLINES[routes.discipline], byte_budget=byte_budget)
        self.choosy = RequestQueue(byte_budget=byte_budget)
        self.returned = RequestQueue(byte_budget=byte_budget)
        self.overload = Overload()
        self._routes = routes
        self._limits = limits
        self._max_bytes = int(limits.max_queue_mib * BYTES_PER_MIB)
        self._byte_budget = byte_budget

    @property
    def depth(self) -> int:
        """Requests that wait."""
        return len(self.queue.places) + len(self.choosy.places) + len(self.returned.places)

    def push(self, pending: PendingRequest) -> None:
        """Add a request, new or returned."""
        if pending.deaths or pending.refusals:
            self.returned.push(pending)
        elif pending.request.accuracy_floor:
            self.choosy.push(pending)
        else:
            self.queue.push(pending)

    def remove(self, pending: PendingRequest) -> None:
        """Remove a request from where it waits; nothing happens where it does not."""
        for queue in (self.queue, self.choosy, self.returned):
            queue.remove(pending)

    def clear(self) -> list[PendingRequest]:
        """Take every request."""
        return [*self.returned.clear(), *self.choosy.clear(), *self.queue.clear()]

    def arrange(self, routes: ModelRoutes) -> None:
        """Follow the routes' discipline; while overloaded clients take turns."""
        self._routes = routes
        fair = self._limits.fair_clients and self.overload.active
        self.queue.arrange(DISCIPLINES[routes.discipline], fair=fair)

    def admit(
        self, pending: PendingRequest, capacity: Capacity, now_s: float
    ) -> PendingRequest | None:
        """Admit a new request to the queue.

        Args:
            pending: The request.
            capacity: The capacity of the model's instances.
            now_s: The time.

        Returns:
            The request that had to make room for it; None: none had to.

        Raises:
            ResourceExhausted: It cannot be answered in time, or there is no room; the error says
                when there will be.
        """
        rate_rps = capacity.rate_rps
        if rate_rps > 0:
            self._check_in_time(pending, rate_rps, capacity.likely_s, now_s)
        size_bytes = len(pending.request.body)
        waiting_bytes = self.queue.size_bytes + self.choosy.size_bytes
        if size_bytes > self._max_bytes - waiting_bytes:
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
        self.push(pending)
        return displaced

    def becomes_overloaded(self, capacity: Capacity, now_s: float) -> bool:
        """Return whether the model has just become overloaded, and note it."""
        longest = SHED_AT * self._routes.slo_latency_s * capacity.rate_rps
        if self.overload.active or capacity.rate_rps <= 0 or len(self.queue.places) <= longest:
            return False
        self.overload.begin(now_s)
        return True

    def displaced(self) -> ResourceExhausted:
        """Return the error of a waiting request that had to make room for another."""
        return ResourceExhausted(
            f"{self._limits.max_queue} requests wait for model {self._routes.model!r}, the most"
            " that may, and others go before this one",
            reason="QUEUE_FULL",
            retry_after_s=self._routes.slo_latency_s,
        )

    def too_late(self, pending: PendingRequest, now_s: float) -> DeadlineExceeded:
        """Return the error of a request that waited until it could not be answered in time."""
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
        served_s = len(self.queue.places) / rate_rps if rate_rps > 0 else 0.0
        return ResourceExhausted(
            f"{count} {what} for model {self._routes.model!r}, the most that may",
            reason=reason,
            retry_after_s=served_s or self._routes.slo_latency_s,
        )


def too_inaccurate(routes: ModelRoutes, pending: PendingRequest) -> FailedPrecondition | None:
    """Return the error of a request whose accuracy no instance has; None: one has it."""
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

"""Prometheus metrics of the router, with the children of a model looked up once."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

REQUESTS = Counter(
    "cinquefoil_requests_total", "Inference requests that ended, by status.", ["model", "status"]
)
REQUEST_SECONDS = Histogram(
    "cinquefoil_request_duration_seconds",
    "From a request's arrival to its answer.",
    ["model"],
    buckets=_BUCKETS_S,
)
QUEUE_SECONDS = Histogram(
    "cinquefoil_queue_duration_seconds",
    "Of it: waiting, in the router and in the worker.",
    ["model"],
    buckets=_BUCKETS_S,
)
COMPUTE_SECONDS = Histogram(
    "cinquefoil_compute_duration_seconds",
    "Of it: the request's batch executing.",
    ["model", "variant"],
    buckets=_BUCKETS_S,
)
ENERGY = Counter(
    "cinquefoil_request_energy_joules_total",
    "Active energy of the answered requests.",
    ["model", "variant"],
)
CARBON = Counter(
    "cinquefoil_request_carbon_gco2e_total",
    "Carbon of that energy, where the intensity was known.",
    ["model", "variant"],
)
PENDING = Gauge(
    "cinquefoil_pending_requests",
    "Requests that wait for an instance or for its answer.",
    ["model"],
)


class ModelMetrics:
    """The children of one model."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._statuses: dict[str, Counter] = {}
        self._variants: dict[str, tuple[Histogram, Counter, Counter]] = {}
        self._request = REQUEST_SECONDS.labels(model)
        self._queue = QUEUE_SECONDS.labels(model)
        self.pending = PENDING.labels(model)

    def end(self, status: str) -> None:
        """Count a request that ended."""
        known = self._statuses.get(status)
        if known is None:
            known = self._statuses[status] = REQUESTS.labels(self._model, status)
        known.inc()

    def answer(self, variant: str, *, latency_s: float, queue_s: float, compute_s: float) -> None:
        """Count an answer's times."""
        self.end("OK")
        self._request.observe(latency_s)
        self._queue.observe(queue_s)
        self._of(variant)[0].observe(compute_s)

    def cost(self, variant: str, *, energy_j: float, carbon_gco2e: float | None) -> None:
        """Count an answer's cost."""
        _, energy, carbon = self._of(variant)
        energy.inc(energy_j)
        carbon.inc(carbon_gco2e or 0.0)

    def _of(self, variant: str) -> tuple[Histogram, Counter, Counter]:
        known = self._variants.get(variant)
        if known is None:
            labels = (self._model, variant)
            known = COMPUTE_SECONDS.labels(*labels), ENERGY.labels(*labels), CARBON.labels(*labels)
            self._variants[variant] = known
        return known

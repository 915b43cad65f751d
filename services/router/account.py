"""Every request of a model is counted here, once: for the planner, for callers, for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

from services.router.domain import Instance, Request
from services.router.link import Cost, Result
from services.router.metrics import ModelMetrics
from services.router.receipts import Intensity, Receipt, Trailers, parameters, receipt, trailers
from services.router.tally import Answered, Tally


@dataclass(frozen=True, slots=True)
class Answer:
    """What the caller gets. Attributes: body (serialized response), trailers (metadata)."""

    body: bytes
    trailers: Trailers


class Account:
    """The counts of one model."""

    def __init__(self, model: str, slo_latency_s: float, intensity: Intensity) -> None:
        self.tally = Tally(slo_latency_s)
        self._metrics = ModelMetrics(model)
        self._intensity = intensity

    def arrive(self) -> None:
        """Count a request for this model."""
        self.tally.arrive()
        self._metrics.pending.inc()

    def answer(self, request: Request, instance: Instance, result: Result, now_s: float) -> Answer:
        """Count an answer, and put its receipt on it."""
        self._metrics.pending.dec()
        cost = result.cost
        queue_s = request.sent_s - request.arrived_s + (cost.queue_s if cost else 0.0)
        answered = Answered(
            latency_s=now_s - request.arrived_s,
            queue_s=queue_s,
            compute_s=cost.compute_s if cost else 0.0,
            batch_size=cost.batch_size if cost else 1,
            variant=instance.variant,
            accuracy=instance.accuracy,
            receipt=self._receipt(instance, cost),
        )
        self.tally.answer(answered, now_s)
        self._metrics.answer(
            instance.variant,
            latency_s=answered.latency_s,
            queue_s=queue_s,
            compute_s=answered.compute_s,
        )
        paid = answered.receipt
        return Answer(result.response + parameters(instance, paid), trailers(instance, paid))

    def failure(self, request: Request, status: str, now_s: float) -> None:
        """Count a request that ended in an error."""
        self._metrics.pending.dec()
        self._metrics.end(status)
        self.tally.failure(now_s - request.arrived_s)

    def _receipt(self, instance: Instance, cost: Cost | None) -> Receipt | None:
        if cost is None:
            return None
        found = receipt(instance, cost.energy_j, cost.idle_energy_j, cost.method, self._intensity)
        self._metrics.cost(
            instance.variant, energy_j=found.energy_j, carbon_gco2e=found.carbon_gco2e
        )
        return found

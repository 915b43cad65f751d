"""Counts every request of a model once: for the planner, for callers, for Prometheus."""

from typing import NamedTuple

from services.kit.request_cost import Cost
from services.kit.telemetry import tracing
from services.router.core.accounting.counters import VariantStats
from services.router.core.accounting.model_stats import ModelStats
from services.router.core.accounting.receipt_watchers import Receipt, ReceiptWatchers
from services.router.core.accounting.receipts import (
    Intensity,
    Receipts,
    Trailers,
    carbon_gco2e,
    cost_trailers,
)
from services.router.core.accounting.service_level import WINDOWS_S
from services.router.core.model import Instance, ModelRoutes
from services.router.core.pending_request import PendingRequest
from services.router.core.pipeline.pipeline_request import StageCost
from services.router.core.worker_port import Result


class Answer(NamedTuple):
    """The answer to the caller: a serialized response, and trailing metadata."""

    body: bytes
    trailers: Trailers


class _Variant(NamedTuple):
    """Counters of a variant's answers, and their receipts."""

    stats: VariantStats
    receipts: Receipts


class Account:
    """The counts of one model.

    Attributes:
        routes: Its entry in the newest routing table that had it.
        stats: The counters.
    """

    def __init__(
        self,
        routes: ModelRoutes,
        intensity: Intensity,
        windows_s: tuple[float, ...] = WINDOWS_S,
        watchers: ReceiptWatchers | None = None,
    ) -> None:
        self.routes = routes
        self.stats = ModelStats(routes.slo_latency_s, routes.slo_percentile, windows_s)
        self._intensity = intensity
        self._watchers = watchers
        self._variants: dict[str, _Variant] = {}

    def use(self, routes: ModelRoutes) -> None:
        """Take over a new routing table's entry."""
        self.routes = routes
        self.stats.slo_latency_s = routes.slo_latency_s
        self.stats.slo_percentile = routes.slo_percentile

    def answer(
        self, pending: PendingRequest, instance: Instance, result: Result, now_s: float
    ) -> Answer:
        """Count an answer, and return it with its receipt."""
        variant = self._variants.get(instance.variant)
        if variant is None or variant.receipts.accuracy != instance.accuracy:
            variant = self._open(instance)
        cost, carbon, queue_s = result.cost, None, pending.queue_s
        if pending.pipeline is not None:
            cost = pending.pipeline.total_cost(cost)
        if cost is not None:
            queue_s += cost.queue_s
            carbon = self._carbon_gco2e(pending, instance, result.cost)
        latency_s = now_s - pending.request.arrived_s
        self.stats.answer(
            variant.stats,
            now_s,
            latency_s=latency_s,
            in_time=self.routes.in_time(latency_s, cost.usage if cost else None),
            queue_s=queue_s,
            accuracy=instance.accuracy,
            traceparent=pending.request.traceparent,
        )
        if cost is not None:
            self.stats.cost(variant.stats, cost, carbon or 0.0)
        if tracing.recording():
            tracing.annotate(_attributes(pending, instance, queue_s, cost, carbon))
        if self._watchers is not None and self._watchers.present:
            self._watchers.offer(Receipt(now_s, instance, latency_s, queue_s, cost, carbon))
        receipts = variant.receipts
        return Answer(
            result.response + receipts.parameters(cost, carbon), receipts.trailers(cost, carbon)
        )

    def failure(self, pending: PendingRequest, status: str, now_s: float) -> None:
        """Count a request that ended in an error."""
        self.stats.failure(status, now_s, now_s - pending.request.arrived_s)
        for stage in pending.pipeline.stage_costs if pending.pipeline else ():
            self._unclaimed(stage.instance, stage.cost)

    def count_unclaimed(self, instance: Instance, result: Result) -> Trailers:
        """Count the energy of a result that no answer reports: it failed, or its caller has gone.

        Returns:
            Trailing metadata for the caller beside the error.
        """
        return self._unclaimed(instance, result.cost)

    def _unclaimed(self, instance: Instance, cost: Cost | None) -> Trailers:
        if cost is None:
            return ()
        carbon = carbon_gco2e(instance, cost.energy_j, self._intensity)
        self.stats.unclaimed_j += cost.energy_j
        self.stats.unclaimed_gco2e += carbon or 0.0
        return cost_trailers(cost, carbon)

    def _carbon_gco2e(
        self, pending: PendingRequest, last: Instance, cost: Cost | None
    ) -> float | None:
        """Price a request's energy where it was used, by stage; None: not all can be priced."""
        if pending.pipeline is None:
            return None if cost is None else carbon_gco2e(last, cost.energy_j, self._intensity)
        priced = [
            carbon_gco2e(stage.instance, stage.cost.energy_j, self._intensity)
            for stage in (*pending.pipeline.stage_costs, StageCost(last, cost))
            if stage.cost is not None
        ]
        return None if None in priced else sum(each for each in priced if each is not None)

    def _open(self, instance: Instance) -> _Variant:
        found = _Variant(
            self.stats.variants[instance.variant], Receipts(instance.variant, instance.accuracy)
        )
        self._variants[instance.variant] = found
        return found


def _attributes(
    pending: PendingRequest,
    instance: Instance,
    queue_s: float,
    cost: Cost | None,
    carbon: float | None,
) -> dict[str, str | float]:
    """Return an answer's attributes of its span."""
    found: dict[str, str | float] = {
        "cinquefoil.model": pending.request.model,
        "cinquefoil.variant": instance.variant,
        "cinquefoil.segment": instance.segment_id,
        "cinquefoil.attempts": pending.attempts,
        "cinquefoil.queue_s": queue_s,
    }
    if cost is not None:
        found["cinquefoil.energy_j"] = cost.energy_j
    if carbon is not None:
        found["cinquefoil.carbon_gco2e"] = carbon
    if cost is not None and cost.usage is not None:
        found |= {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "cinquefoil",
            "gen_ai.request.model": pending.request.model,
            "gen_ai.response.model": instance.variant,
            "gen_ai.usage.input_tokens": cost.usage.input_tokens,
            "gen_ai.usage.output_tokens": cost.usage.output_tokens,
        }
    return found

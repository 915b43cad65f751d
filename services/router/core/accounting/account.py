"""Every request of a model is counted here, once: for the planner, for callers, for Prometheus."""

from __future__ import annotations

from typing import NamedTuple

from services.kit.telemetry import tracing
from services.router.core.accounting.model_stats import ModelStats
from services.router.core.accounting.receipts import (
    Intensity,
    Receipts,
    Trailers,
    carbon_gco2e,
    spent,
)
from services.router.core.accounting.service_level import WINDOWS_S
from services.router.core.accounting.variant_stats import VariantStats
from services.router.core.model import Instance, ModelRoutes, Request
from services.router.core.pipeline.pipeline_request import StageCost
from services.router.core.worker_port import Cost, Result


class Answer(NamedTuple):
    """What the caller gets: a serialized response, and trailing metadata."""

    body: bytes
    trailers: Trailers


class _Variant(NamedTuple):
    """What answers of one variant are counted in and told with."""

    stats: VariantStats
    receipts: Receipts


class Account:
    """The counts of one model.

    Attributes:
        routes: Its entry in the newest routing table that had it.
        stats: The counts.
    """

    def __init__(
        self,
        routes: ModelRoutes,
        intensity: Intensity,
        windows_s: tuple[float, ...] = WINDOWS_S,
    ) -> None:
        self.routes = routes
        self.stats = ModelStats(routes.slo_latency_s, routes.slo_percentile, windows_s)
        self._intensity = intensity
        self._variants: dict[str, _Variant] = {}

    def use(self, routes: ModelRoutes) -> None:
        """Take over a new routing table's entry."""
        self.routes = routes
        self.stats.slo_latency_s = routes.slo_latency_s
        self.stats.slo_percentile = routes.slo_percentile

    def arrive(self) -> None:
        """Count a request for this model."""
        self.stats.arrivals += 1

    def answer(self, request: Request, instance: Instance, result: Result, now_s: float) -> Answer:
        """Count an answer, and put its receipt on it."""
        variant = self._variants.get(instance.variant)
        if variant is None or variant.receipts.accuracy != instance.accuracy:
            variant = self._open(instance)
        cost, carbon = result.cost, None
        queue_s = request.sent_s - request.arrived_s
        if request.pipeline is not None:
            queue_s = request.pipeline.queue_s
            cost = request.pipeline.whole(cost)
        if cost is not None:
            queue_s += cost.queue_s
            carbon = self._carbon_gco2e(request, instance, result.cost)
            self.stats.cost(variant.stats, cost, carbon or 0.0)
        self.stats.answer(
            variant.stats,
            now_s,
            latency_s=now_s - request.arrived_s,
            queue_s=queue_s,
            accuracy=instance.accuracy,
        )
        if tracing.recording():
            tracing.annotate(_attributes(request, instance, queue_s, cost, carbon))
        receipts = variant.receipts
        return Answer(
            result.response + receipts.parameters(cost, carbon), receipts.trailers(cost, carbon)
        )

    def failure(self, request: Request, status: str, now_s: float) -> None:
        """Count a request that ended in an error."""
        self.stats.failure(status, now_s, now_s - request.arrived_s)
        for stage_cost in request.pipeline.stage_costs if request.pipeline else ():
            if stage_cost.cost is not None:
                carbon = carbon_gco2e(
                    stage_cost.instance, stage_cost.cost.energy_j, self._intensity
                )
                self.stats.unclaimed(stage_cost.cost.energy_j, carbon or 0.0)

    def spent(self, instance: Instance, result: Result) -> Trailers:
        """Count the energy of work that no answer tells of: it failed, or nobody waits for it.

        Returns:
            What to tell the caller beside the error.
        """
        if result.cost is None:
            return ()
        carbon = carbon_gco2e(instance, result.cost.energy_j, self._intensity)
        self.stats.unclaimed(result.cost.energy_j, carbon or 0.0)
        return spent(result.cost, carbon)

    def _carbon_gco2e(self, request: Request, last: Instance, cost: Cost | None) -> float | None:
        """Price a request where its energy was used, at each stage; None: not all can be."""
        stage_costs = [
            *(request.pipeline.stage_costs if request.pipeline else ()),
            StageCost(last, cost),
        ]
        priced = [
            carbon_gco2e(stage_cost.instance, stage_cost.cost.energy_j, self._intensity)
            for stage_cost in stage_costs
            if stage_cost.cost is not None
        ]
        return None if None in priced else sum(each for each in priced if each is not None)

    def _open(self, instance: Instance) -> _Variant:
        found = _Variant(
            self.stats.variant(instance.variant), Receipts(instance.variant, instance.accuracy)
        )
        self._variants[instance.variant] = found
        return found


def _attributes(
    request: Request, instance: Instance, queue_s: float, cost: Cost | None, carbon: float | None
) -> tracing.Attributes:
    """Return what a span tells of an answer."""
    found: dict[str, str | float] = {
        "cinquefoil.model": request.model,
        "cinquefoil.variant": instance.variant,
        "cinquefoil.segment": instance.segment_id,
        "cinquefoil.attempts": request.attempts,
        "cinquefoil.queue_s": queue_s,
    }
    if cost is not None:
        found["cinquefoil.energy_j"] = cost.energy_j
    if carbon is not None:
        found["cinquefoil.carbon_gco2e"] = carbon
    return found

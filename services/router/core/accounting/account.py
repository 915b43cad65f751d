"""Counts every request of a model once: for the planner, for callers, for Prometheus."""

from typing import NamedTuple

from services.kit.errors import ServiceError
from services.kit.request_cost import Cost
from services.kit.telemetry import tracing
from services.router.core.accounting.model_stats import ModelStats
from services.router.core.accounting.receipt_watchers import Receipt, ReceiptWatchers
from services.router.core.accounting.receipts import (
    Answer,
    Carbon,
    Intensity,
    Receipts,
    Trailers,
    cost_trailers,
    priced,
    with_waiting,
)
from services.router.core.accounting.service_level import WINDOWS_S
from services.router.core.accounting.waiting_stats import WaitingStats
from services.router.core.model import Instance, ModelRoutes
from services.router.core.pending_request import PendingRequest
from services.router.core.pipeline.pipeline_request import PipelineRequest, StageCost
from services.router.core.single_response import SingleResponse
from services.router.core.worker_port import Result


class Outcome(NamedTuple):
    """The answer to a request, before it is counted; and when it came, monotonic s."""

    instance: Instance
    result: Result
    answered_s: float


Ended = Outcome | ServiceError
"""The end of a request."""


class Account:
    """The counts of one model.

    Attributes:
        routes: Its entry in the newest routing table that had it.
        stats: The counters.
        waiting: Those of requests that can wait.
    """

    def __init__(
        self,
        routes: ModelRoutes,
        intensity: Intensity,
        windows_s: tuple[float, ...] = WINDOWS_S,
        watchers: ReceiptWatchers | None = None,
    ) -> None:
        self.routes = routes
        self.stats = ModelStats(windows_s)
        self.waiting = WaitingStats()
        self._intensity = intensity
        self._watchers = watchers
        self._receipts: dict[str, Receipts] = {}

    def answer(self, pending: PendingRequest, outcome: Outcome) -> Answer:
        """Count an answer, and return it with its receipt."""
        instance, result, now_s = outcome
        receipts = self._receipts.get(instance.variant)
        if receipts is None or receipts.accuracy != instance.accuracy:
            receipts = Receipts(instance.variant, instance.accuracy)
            self._receipts[instance.variant] = receipts
        cost, carbon, arrived_s = result.cost, None, pending.request.arrived_s
        if pending.pipeline is None:
            queue_s = pending.assigned_s - arrived_s
            if cost is not None:
                carbon = priced(instance, cost, self._intensity)
        else:
            queue_s, last, cost = pending.queue_s, cost, pending.pipeline.total_cost(cost)
            if cost is not None:
                carbon = self._pipeline_carbon(pending.pipeline, instance, last)
        if cost is not None:
            queue_s += cost.queue_s
        latency_s = now_s - arrived_s
        active, total = carbon or (None, None)
        waiting = pending.request.deferrable
        receipt = Receipt(
            now_s, instance, latency_s, queue_s, cost, active, total, waiting, pending.marginal_j
        )
        self._count(receipt, pending)
        if pending.request.traceparent and tracing.recording():
            tracing.annotate(_attributes(pending, receipt))
        if self._watchers is not None and self._watchers.present:
            self._watchers.offer(receipt)
        answer = receipts.add(result.response, cost, carbon)
        return with_waiting(answer, queue_s, pending.marginal_j) if waiting else answer

    def _count(self, receipt: Receipt, pending: PendingRequest) -> None:
        if receipt.waiting:
            self.waiting.answer(receipt)
            return
        usage = receipt.cost.usage if receipt.cost else None
        self.stats.answer(
            receipt,
            in_time=self.routes.in_time(receipt.latency_s, usage),
            traceparent=pending.request.traceparent,
        )

    def outcome(
        self, pending: PendingRequest, instance: Instance, result: Result, now_s: float
    ) -> Ended:
        """Return the caller's answer for the last result; an error carries its cost."""
        receiver = pending.receiver
        if result.status:
            error = result.error()
        elif receiver is None and result.response:
            return Outcome(instance, result, now_s)
        else:
            receiver = receiver or SingleResponse(pending.request.model)
            try:
                result.response = receiver.complete(result.response)
            except ServiceError as refusal:
                error = refusal
            else:
                return Outcome(instance, result, now_s)
        error.trailers = self.count_unclaimed(instance, result.cost)
        return error

    def failure(self, pending: PendingRequest, status: str, now_s: float) -> None:
        """Count a request that ended in an error."""
        if pending.request.deferrable:
            self.waiting.failure(status)
        else:
            self.stats.failure(status, now_s, now_s - pending.request.arrived_s)
        for stage in pending.pipeline.stage_costs if pending.pipeline else ():
            self.count_unclaimed(stage.instance, stage.cost)

    def count_unclaimed(self, instance: Instance, cost: Cost | None) -> Trailers:
        """Count the energy of a result that no answer reports: it failed, or its caller has gone.

        Returns:
            Trailing metadata for the caller beside the error.
        """
        if cost is None:
            return ()
        self.stats.unclaimed_j += cost.energy_j
        return cost_trailers(cost, priced(instance, cost, self._intensity))

    def _pipeline_carbon(
        self, pipeline: PipelineRequest, last: Instance, cost: Cost | None
    ) -> Carbon | None:
        """Price a request's energy where it was used, by stage; None: not all can be priced."""
        found = [
            priced(stage.instance, stage.cost, self._intensity)
            for stage in (*pipeline.stage_costs, StageCost(last, cost))
            if stage.cost is not None
        ]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        return Carbon(sum(each.active for each in known), sum(each.total for each in known))


def _attributes(pending: PendingRequest, receipt: Receipt) -> dict[str, str | float]:
    """Return an answer's attributes of its span."""
    model, variant, cost = pending.request.model, receipt.instance.variant, receipt.cost
    found: dict[str, str | float] = {
        "cinquefoil.model": model,
        "cinquefoil.variant": variant,
        "cinquefoil.segment": receipt.instance.segment_id,
        "cinquefoil.attempts": pending.attempts,
        "cinquefoil.queue_s": receipt.queue_s,
    }
    if cost is not None:
        found["cinquefoil.energy_j"] = cost.energy_j
    if receipt.carbon_gco2e is not None:
        found["cinquefoil.carbon_gco2e"] = receipt.carbon_gco2e
    if cost is not None and cost.usage is not None:
        found |= {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "cinquefoil",
            "gen_ai.request.model": model,
            "gen_ai.response.model": variant,
            "gen_ai.usage.input_tokens": cost.usage.input_tokens,
            "gen_ai.usage.cache_read.input_tokens": cost.usage.cached_tokens,
            "gen_ai.usage.output_tokens": cost.usage.output_tokens,
        }
    return found

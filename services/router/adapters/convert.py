"""Protobuf <-> values of the core, for the planner and for GetStatus."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, get_args

from cinquefoil.planner.v1 import plan_pb2, planner_pb2, waiting_pb2
from cinquefoil.router.v1 import router_pb2
from services.kit.clock import Clock
from services.kit.config import Discipline, InstanceChoice
from services.kit.errors import FailedPrecondition
from services.kit.power_limits import MOST_GPU_W
from services.kit.rpc.figures import Bounds, check_figures
from services.kit.rpc.record_mapping import from_message, to_message
from services.kit.segment import MOST_BATCH
from services.router.core.accounting.account import Account
from services.router.core.accounting.counters import StatsWindow
from services.router.core.accounting.receipt_watchers import Receipt
from services.router.core.deferrable.release import ReleasePeriod, ReleasePlan
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.instance_state import InstanceState
from services.router.core.model import Instance, InstanceId, ModelRoutes, RoutingTable
from services.router.core.queue.request_queue import DISCIPLINES
from services.router.runtime.engine import Engine

_PERCENTILES = (50.0, 95.0, 99.0)
_CHOICES: dict[str, InstanceChoice] = {name: name for name in get_args(InstanceChoice)}
_DISCIPLINES: dict[str, Discipline] = {name: name for name in DISCIPLINES}


_MOST_S: Final = 86_400.0
_MOST_STAGES: Final = 256
_OF_ROUTES: Final[Bounds] = {
    "slo_latency_s": (0, _MOST_S),
    "slo_percentile": (0, 100),
    "slo_first_token_s": (0, _MOST_S),
    "slo_token_s": (0, _MOST_S),
    "intensity_threshold": (0, 1e6),
}
_MOST_RPS: Final = 1e9
_MOST_PERIODS: Final = 1024
_CAUSES: Final = {
    waiting_pb2.RELEASE_CAUSE_LATER: "cleaner hours come before the deadline",
    waiting_pb2.RELEASE_CAUSE_NO_ROOM: "interactive requests leave no room",
    waiting_pb2.RELEASE_CAUSE_HELD: "the grid, or an operator, requires less power",
}
_OF_AN_INSTANCE: Final[Bounds] = {
    "accuracy": (-1e9, 1e9),
    "share": (0, 1e6),  # of a change: relative to those before
    "credits": (0, MOST_BATCH),
    "pue": (0, 10),
    "gpu_idle_power_w": (0, MOST_GPU_W),
    "stage": (0, _MOST_STAGES),
    "stages": (0, _MOST_STAGES),
    "power_limit_w": (0, MOST_GPU_W),
}


def to_table(table: plan_pb2.RoutingTable) -> RoutingTable:
    """Return a routing table of the planner.

    Raises:
        InvalidArgument: A figure cannot be.
    """
    return from_message(table, RoutingTable, models=tuple(map(_routes, table.models)))


def changed_table(table: RoutingTable, change: plan_pb2.RoutingChange) -> RoutingTable:
    """Return a routing table after a change of it.

    Raises:
        FailedPrecondition: It is a change of another table.
        InvalidArgument: A figure cannot be.
    """
    if change.base_revision != table.revision:
        raise FailedPrecondition(
            f"a change of routing table {change.base_revision} came for {table.revision}"
        )
    models = {routes.model: routes for routes in table.models}
    for name in change.removed_models:
        models.pop(name, None)
    for each in change.models:
        models[each.routes.model] = _changed_routes(models.get(each.routes.model), each)
    return RoutingTable(change.revision, change.plan_version, tuple(models.values()), change.term)


def _changed_routes(before: ModelRoutes | None, change: plan_pb2.ModelRoutesChange) -> ModelRoutes:
    now = _routes(change.routes)
    instances = {each.id: each for each in before.instances} if before else {}
    for gone in change.removed:
        instances.pop(InstanceId(gone.endpoint, gone.segment_id), None)
    instances.update({each.id: each for each in now.instances})
    sums: dict[tuple[str, int], float] = {}
    for each in instances.values():
        queue = (each.variant if each.stage else "", each.stage)
        sums[queue] = sums.get(queue, 0.0) + each.share
    shared = (
        replace(each, share=each.share / total) if total > 0 else each
        for each in instances.values()
        for total in (sums[each.variant if each.stage else "", each.stage],)
    )
    return replace(now, instances=tuple(shared))


def _routes(routes: plan_pb2.ModelRoutes) -> ModelRoutes:
    check_figures(f"routes of {routes.model:.64}", routes, _OF_ROUTES)
    for each in routes.instances:
        check_figures(f"instance {each.endpoint:.64}", each, _OF_AN_INSTANCE)
    return ModelRoutes(
        model=routes.model,
        slo_latency_s=routes.slo_latency_s,
        slo_percentile=routes.slo_percentile,
        slo_first_token_s=routes.slo_first_token_s or math.inf,
        slo_token_s=routes.slo_token_s or math.inf,
        # A newer planner may name unknown policies: these always work.
        instance_choice=_CHOICES.get(routes.instance_choice, "shares"),
        discipline=_DISCIPLINES.get(routes.discipline, "fcfs"),
        intensity_threshold=(
            routes.intensity_threshold if routes.HasField("intensity_threshold") else 1.0
        ),
        instances=tuple(
            from_message(
                each,
                Instance,
                model=routes.model,
                pue=max(each.pue, 1.0),
                stages=max(each.stages, 1),
            )
            for each in routes.instances
        ),
    )


def to_releases(
    releases: Iterable[waiting_pb2.WaitingRelease], since_s: float
) -> dict[str, ReleasePlan]:
    """Return the releases of a plan by model.

    Args:
        releases: The releases.
        since_s: Time of the epoch at which monotonic time was 0, s.

    Raises:
        InvalidArgument: A figure cannot be.
    """
    return {
        each.model: ReleasePlan(
            [_period(period, since_s) for period in each.periods[:_MOST_PERIODS]]
        )
        for each in releases
    }


def _period(period: waiting_pb2.ReleasePeriod, since_s: float) -> ReleasePeriod:
    """Return a period; `since_s`: the time of the epoch at which monotonic time was 0."""
    check_figures("release", period, {"rate_rps": (0, _MOST_RPS), "later_rps": (0, _MOST_RPS)})
    due_s = period.fill_due.ToNanoseconds() / 1e9 if period.HasField("fill_due") else -math.inf
    return ReleasePeriod(
        period.since.ToNanoseconds() / 1e9 - since_s,
        period.until.ToNanoseconds() / 1e9 - since_s,
        math.inf if period.fill else period.later_rps,
        _CAUSES.get(period.cause, ""),
        due_s - since_s,
    )


def to_report(engine: Engine, router_id: str, window_s: float) -> planner_pb2.ReportLoadRequest:
    """Return the load since the last report; every account begins a new window."""
    seconds = engine.roll_seconds()
    report = planner_pb2.ReportLoadRequest(
        router_id=router_id,
        routing_revision=engine.registry.table.revision,
        models=[
            _load(dispatcher, engine.accounts[dispatcher.routes.model], seconds)
            for dispatcher in engine.registry
        ],
        first_second=seconds.start,
        unreachable_segments=sorted(engine.registry.unreachable()),
    )
    report.window.FromNanoseconds(int(window_s * 1e9))
    return report


def _load(dispatcher: Dispatcher, account: Account, seconds: range) -> planner_pb2.ModelLoad:
    window, tokens = account.stats.roll(), account.stats.total.tokens
    overload = dispatcher.overload.roll(dispatcher.now_s)
    percentiles = {*_PERCENTILES, dispatcher.routes.slo_percentile}
    return planner_pb2.ModelLoad(
        model=dispatcher.routes.model,
        arrivals=window.arrivals,
        answered=window.answered,
        failed=window.failed,
        late=window.late,
        queue_depth=dispatcher.queue_depth,
        latency_s=_quantiles_s(window, percentiles),
        answered_by_variant=window.by_variant,
        refused=overload.refused,
        overloaded_s=overload.overloaded_s,
        input_tokens=tokens.input_tokens,
        input_tokens_squared=tokens.input_squares,
        cached_input_tokens=tokens.cached_tokens,
        output_tokens=tokens.output_tokens,
        arrivals_per_s=account.stats.per_second.take(seconds),
        waiting=_waiting_load(dispatcher, account),
    )


def _waiting_load(dispatcher: Dispatcher, account: Account) -> planner_pb2.WaitingLoad | None:
    """Return the requests that can wait, and the room for them; None: there were none."""
    filler, stats = dispatcher.filler, account.waiting
    if not filler.used:
        return None
    return planner_pb2.WaitingLoad(
        queued=len(filler.queue),
        queued_tokens=filler.queued_tokens,
        first_due_s=filler.first_due_s(dispatcher.now_s),
        in_flight=filler.in_flight,
        room=filler.room,
        answered=stats.answered,
        ended=stats.ended,
        input_tokens=stats.input_tokens,
        output_tokens=stats.output_tokens,
        energy_j=stats.energy_j,
        marginal_energy_j=stats.marginal_j,
        service_s=filler.service_s,
        singles=[
            planner_pb2.WaitingGroup(due_s=due_s, requests=count)
            for due_s, count in filler.singles(dispatcher.now_s)
        ],
    )


def _waiting_status(
    dispatchers: Sequence[Dispatcher], account: Account
) -> router_pb2.WaitingStatus | None:
    fillers, stats = [each.filler for each in dispatchers], account.waiting
    if not any(filler.used for filler in fillers):
        return None
    return router_pb2.WaitingStatus(
        queued=sum(len(filler.queue) for filler in fillers),
        in_flight=sum(filler.in_flight for filler in fillers),
        room=sum(filler.room for filler in fillers),
        answered=stats.answered,
        ended=stats.ended,
        output_tokens=stats.output_tokens,
        energy_j=stats.energy_j,
        marginal_energy_j=stats.marginal_j,
        held_by=fillers[0].held_by,
    )


def _quantiles_s(counts: StatsWindow, percentiles: Iterable[float]) -> dict[str, float]:
    """Return latencies by percentile, s; empty where nothing was answered."""
    return {f"{each:g}": value for each, value in counts.latency.quantiles(percentiles).items()}


def to_status(
    engine: Engine, router_id: str, started_at: datetime, clock: Clock
) -> router_pb2.GetStatusResponse:
    """Return queues, instances and latencies as they are now."""
    now_s, age_s = clock.monotonic(), (clock.now() - started_at).total_seconds()
    status = router_pb2.GetStatusResponse(
        router_id=router_id,
        routing_revision=engine.registry.table.revision,
        plan_version=engine.registry.table.plan_version,
        models=[
            _model_status(
                engine.registry.dispatchers(dispatcher.routes.model),
                engine.accounts[dispatcher.routes.model],
                now_s,
                age_s,
            )
            for dispatcher in engine.registry
        ],
    )
    status.started_at.FromDatetime(started_at)
    return status


def to_receipts(
    router_id: str, receipts: Sequence[Receipt], left_out: int, clock: Clock
) -> router_pb2.WatchReceiptsResponse:
    """Return the next message of a watcher of receipts."""
    started_at = clock.now() - timedelta(seconds=clock.monotonic())
    return router_pb2.WatchReceiptsResponse(
        router_id=router_id,
        receipts=[_receipt(each, started_at) for each in receipts],
        left_out=left_out,
    )


def _receipt(receipt: Receipt, started_at: datetime) -> router_pb2.Receipt:
    """Return one receipt; `started_at`: where monotonic time was 0."""
    cost = receipt.cost
    found = to_message(receipt, router_pb2.Receipt)
    found.answered_at.FromDatetime(started_at + timedelta(seconds=receipt.answered_s))
    found.MergeFrom(to_message(receipt.instance, router_pb2.Receipt))
    if cost is not None:
        found.MergeFrom(to_message(cost, router_pb2.Receipt))
        found.energy_method, found.queue_s = cost.method, receipt.queue_s  # a cost's: the worker's
        if cost.usage is not None:
            found.MergeFrom(to_message(cost.usage, router_pb2.Receipt))
    return found


def _model_status(
    dispatchers: Sequence[Dispatcher], account: Account, now_s: float, age_s: float
) -> router_pb2.ModelStatus:
    """Return the status of a model, all stages of its pipelines together."""
    stats, dispatcher = account.stats, dispatchers[0]
    counts, total = stats.since_start(), stats.total
    rate_rps, output_tokens_per_s = stats.rates(now_s, age_s)
    status = router_pb2.ModelStatus(
        model=dispatcher.routes.model,
        queue_depth=sum(each.queue_depth for each in dispatchers),
        in_flight=sum(each.in_flight for each in dispatchers),
        latency_s=_quantiles_s(counts, _PERCENTILES),
        slo_latency_s=dispatcher.routes.slo_latency_s,
        energy_j=total.energy_j,
        carbon_gco2e=total.carbon_gco2e,
        idle_energy_j=total.idle_energy_j,
        carbon_total_gco2e=total.carbon_total_gco2e,
        accuracy=total.accuracy,
        instances=[
            _instance_status(state) for each in dispatchers for state in each.states.values()
        ],
        rate_rps=rate_rps,
        input_tokens=total.tokens.input_tokens,
        output_tokens=total.tokens.output_tokens,
        output_tokens_per_s=output_tokens_per_s,
        waiting=_waiting_status(dispatchers, account),
    )
    status.MergeFrom(to_message(counts, router_pb2.ModelStatus))
    return status


def _instance_status(state: InstanceState) -> router_pb2.InstanceStatus:
    status = to_message(state.instance, router_pb2.InstanceStatus)
    status.connected, status.answered = state.up, state.answered
    status.in_flight = len(state.in_flight)
    return status

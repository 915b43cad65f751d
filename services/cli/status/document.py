"""The status as `cinquefoil status --json` prints it: values of the services' messages, joined.

Every value that a message has itself is taken over by its name, so that a new one appears.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType, SimpleNamespace
from typing import Any

from google.protobuf.message import Message

from cinquefoil.batch.v1.batch_pb2 import Batch
from cinquefoil.carbon.v1.carbon_pb2 import Intensity
from cinquefoil.gpuagent.v1.inventory_pb2 import Gpu, GpuEnergy, Node, Segment
from cinquefoil.planner.v1.grid_event_pb2 import GridEvent
from cinquefoil.planner.v1.plan_pb2 import Plan, PlanInputs
from cinquefoil.planner.v1.planner_pb2 import FleetNode, GetFleetResponse, ListGridEventsResponse
from cinquefoil.predictor.v1.predictor_pb2 import SOURCE_EXACT, SOURCE_SEMANTIC, ModelStatistics
from cinquefoil.regions.v1.regions_pb2 import ListRegionsResponse
from cinquefoil.router.v1.router_pb2 import GetStatusResponse, InstanceStatus, ModelStatus
from services.cli.carbon_budgets import budget_sentence
from services.cli.console.messages import values
from services.cli.console.names import slice_name
from services.cli.console.quantities import percent
from services.cli.grid.show import countdown
from services.cli.regions.rows import region_rows
from services.kit.conditions import command_of, effect_of
from services.kit.promises import accuracy_promise
from services.kit.rpc.condition_messages import conditions_from

Row = SimpleNamespace
"""An object of the document; `json.dumps(..., default=vars)` writes it."""


def document(  # noqa: PLR0913  # one argument per service
    *,
    zones: Iterable[Intensity] = (),
    fleet: GetFleetResponse | None = None,
    plan: Plan | None = None,
    grid: ListGridEventsResponse | None = None,
    regions: ListRegionsResponse | None = None,
    router: GetStatusResponse | None = None,
    lengths: Iterable[ModelStatistics] = (),
    batches: Iterable[Batch] = (),
    planners: Mapping[str, str] = MappingProxyType({}),
    problems: Iterable[str] = (),
    file: str = "",
    speedup: float = 1.0,
) -> Row:
    """Return the status; the parts of a service that does not answer are empty.

    Args:
        zones: The carbon service's. CI and ACI in gCO2e/kWh, CIR = CI / ACI; staleness is in grid
            time, age by this machine's clock.
        fleet: The planner's: powers in W, energies in J, latest as reported by the agents.
        plan: The newest plan.
        grid: Grid events that are not over, and the power of sites, W.
        regions: This region and its peers; None: there is one.
        router: The router's; latencies since its start, s, null before any request.
        lengths: The predictor's, since its start.
        batches: The newest of the batch service; those that have not ended are shown.
        planners: "leads", "stands by" or "is away" by address, where there are several.
        problems: A sentence per service that does not answer.
        file: Digest of the deployment file that the command reads.
        speedup: Grid seconds per second, where the grid is replayed.
    """
    nodes = fleet.nodes if fleet else ()
    return Row(
        zones=[_zone(each, speedup) for each in zones],
        gpus=[gpu for node in nodes for gpu in gpus_of(node)],
        pues=[
            Row(node=each.node.name, pue=each.pue, measured=each.node.HasField("pue"))
            for each in nodes
            if each.pue
        ],
        conditions=[
            Row(
                kind=each.kind.name,
                effect=effect_of(each).value,
                subject=each.subject,
                sentence=each.sentence,
                setting=each.setting,
                command=command_of(each),
            )
            for each in conditions_from(fleet.conditions if fleet else ())
        ],
        away=[each.node.name for each in nodes if not each.connected],
        orders=[_row(each.order, node=each.node.name) for each in nodes if each.HasField("order")],
        drifts=[_row(drift, node=each.node.name) for each in nodes for drift in each.drifts],
        models=[_model(status) for status in (router.models if router else ())],
        lengths=[_lengths(statistics) for statistics in lengths],
        batches=[_row(each) for each in batches if not each.HasField("ended_at")],
        plan=_plan(plan) if plan else None,
        grid_events=[_event(each) for each in (grid.events if grid else ())],
        sites=[_row(each) for each in (grid.sites if grid else ())],
        regions=region_rows(regions),
        carbon_budgets=_budgets(fleet) if fleet else [],
        leader=_row(fleet.leader) if fleet and fleet.HasField("leader") else None,
        planners=dict(planners),
        plans_nothing=bool(fleet and fleet.plans_nothing),
        hold=_row(fleet.hold, until=fleet.hold.until.ToDatetime(UTC).isoformat(timespec="seconds"))
        if fleet and fleet.HasField("hold")
        else None,
        totals=_row(fleet) if fleet else None,
        digests=_digests(file, fleet, router),
        problems=sorted(problems),
    )


def _zone(zone: Intensity, speedup: float) -> Row:
    staleness_s = zone.staleness.ToNanoseconds() / 1e9
    return _row(zone, staleness_s=staleness_s, age_s=staleness_s / speedup)


def _row(*messages: Message, **more: Any) -> Row:
    """Return the values of messages, and more beside them."""
    return Row(**{name: value for each in messages for name, value in values(each).items()} | more)


def gpus_of(fleet: FleetNode) -> Iterator[Row]:
    """Yield a node's GPUs in order of index."""
    accounts = {entry.gpu_uuid: entry for entry in fleet.energy}
    for gpu in sorted(fleet.node.gpus, key=lambda gpu: gpu.index):
        account = accounts.get(gpu.uuid, GpuEnergy())
        yield _row(
            gpu,
            node=fleet.node.name,
            connected=fleet.connected,
            simulated=fleet.node.simulated,
            type=gpu.type.name,
            max_clock_mhz=gpu.type.max_clock_mhz,
            power_w=account.power_w,
            energy_j=account.total_j,
            compute_slices=max((kind.compute_slices for kind in gpu.type.profiles), default=1),
            slices=list(_slices(fleet.node, gpu)),
        )


def _slices(node: Node, gpu: Gpu) -> Iterator[Row]:
    """Yield a GPU's slices with their segments; no model: the slice is free."""
    running = {
        slice_name(segment.spec.placement): segment
        for segment in node.segments
        if segment.spec.gpu_uuid == gpu.uuid
    }
    widths = {kind.name: kind.compute_slices for kind in gpu.type.profiles}
    for each in gpu.slices:
        name = slice_name(each.placement)
        segment = running.get(name, Segment())
        row = _row(
            segment.spec,
            segment,
            placement=name,
            start=each.placement.start,
            compute_slices=widths.get(each.placement.profile, max(widths.values(), default=1)),
        )
        del row.gpu_uuid  # the slices of a thousand GPUs need not repeat it
        yield row


def _model(status: ModelStatus) -> Row:
    return _row(
        status,
        p50_s=status.latency_s.get("50"),
        p95_s=status.latency_s.get("95"),
        waiting=_row(status.waiting) if status.HasField("waiting") else None,
        variants=list(_variants(status.instances)),
    )


def _variants(instances: Sequence[InstanceStatus]) -> Iterator[Row]:
    """Yield the variants that serve: shares of the model's load, and worker processes."""
    for name in sorted({instance.variant for instance in instances}):
        own = [instance for instance in instances if instance.variant == name]
        yield Row(
            variant=name,
            share=sum(instance.share for instance in own if not instance.stage),
            instances=len(own),
            connected=sum(instance.connected for instance in own),
        )


def _budgets(fleet: GetFleetResponse) -> list[Row]:
    prices = fleet.carbon_budget_price_gco2e
    return [_row(each, sentence=budget_sentence(each, prices)) for each in fleet.carbon_budgets]


def _event(event: GridEvent) -> Row:
    """Return a grid event with the times until it begins and ends, s, and both in a sentence."""
    now = datetime.now(UTC)
    return _row(
        event,
        start=event.start.ToDatetime(UTC).isoformat(timespec="seconds"),
        end=event.end.ToDatetime(UTC).isoformat(timespec="seconds"),
        begins_in_s=(event.start.ToDatetime(UTC) - now).total_seconds(),
        ends_in_s=(event.end.ToDatetime(UTC) - now).total_seconds(),
        sentence=countdown(event, now),
    )


def _plan(plan: Plan) -> Row:
    return _row(
        plan,
        parked=list(plan.prediction.parked_gpus),
        empty_nodes=list(plan.prediction.empty_nodes),
        wanted_gpus=dict(plan.prediction.wanted_gpus),
        accuracy=accuracy(plan.inputs) if plan.inputs.HasField("accuracy_mean") else "",
    )


def accuracy(inputs: PlanInputs) -> str:
    """Return the mean accuracy that plans keep, and what it has been so far, in words."""
    mean = inputs.accuracy_mean
    promise = accuracy_promise(mean.at_least, mean.over_s, inputs.accuracy_floor)
    so_far = ", ".join(f"{name} {percent(each)}" for name, each in sorted(mean.so_far.items()))
    return f"{promise}; so far {so_far}" if so_far else promise


def _digests(
    file: str, fleet: GetFleetResponse | None, router: GetStatusResponse | None
) -> dict[str, str]:
    """Return the digests of the deployment files that are known, by reader."""
    found = {
        "this command": file,
        "planner": fleet.config_digest if fleet else "",
        "router": router.config_digest if router else "",
        **{node.node.name: node.config_digest for node in (fleet.nodes if fleet else ())},
    }
    return {name: digest for name, digest in found.items() if digest}


def _lengths(statistics: ModelStatistics) -> Row:
    """Return the quality of predicted lengths; `class_right` is null before any is known."""
    hits = (SOURCE_EXACT, SOURCE_SEMANTIC)
    judged = sum(each.judged for each in statistics.sources)
    right = sum(each.right for each in statistics.sources)
    return _row(
        statistics,
        predictions=sum(each.predictions for each in statistics.sources),
        cache_hits=sum(each.predictions for each in statistics.sources if each.source in hits),
        class_right=right / judged if judged else None,
        prompts=statistics.cache_entries,
    )

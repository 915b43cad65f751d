"""Wire -> view."""

from __future__ import annotations

from collections.abc import Iterator

from cinquefoil.carbon.v1.carbon_pb2 import Intensity, Provenance, Signal
from cinquefoil.gpuagent.v1.inventory_pb2 import Node, SegmentState
from cinquefoil.planner.v1.plan_pb2 import Plan, PlanState
from cinquefoil.planner.v1.planner_pb2 import FleetNode
from cinquefoil.predictor.v1.predictor_pb2 import SOURCE_EXACT, SOURCE_SEMANTIC, ModelStatistics
from cinquefoil.router.v1.router_pb2 import InstanceStatus, ModelStatus
from services.cli.status import view


def word(enum_name: str, prefix: str) -> str:
    """Return an enum value's name for people: PLAN_STATE_ACTIVE -> active."""
    return enum_name.removeprefix(prefix).lower()


def zone(value: Intensity) -> view.Zone:
    """Return a zone's row."""
    return view.Zone(
        zone=value.zone,
        signal=word(Signal.Name(value.signal), "SIGNAL_"),
        intensity_gco2e_per_kwh=value.intensity_gco2e_per_kwh,
        average_gco2e_per_kwh=value.average_gco2e_per_kwh,
        ratio=value.ratio,
        source=value.source,
        staleness_s=value.staleness.ToNanoseconds() / 1e9,
        provenance=word(Provenance.Name(value.provenance), "PROVENANCE_"),
        percentile=value.percentile if value.HasField("percentile") else None,
    )


def gpus(fleet: FleetNode) -> Iterator[view.Gpu]:
    """Yield a node's GPUs in order of index."""
    energy = {entry.gpu_uuid: entry for entry in fleet.energy}
    for gpu in sorted(fleet.node.gpus, key=lambda gpu: gpu.index):
        account = energy.get(gpu.uuid)
        yield view.Gpu(
            node=fleet.node.name,
            connected=fleet.connected,
            simulated=fleet.node.simulated,
            index=gpu.index,
            uuid=gpu.uuid,
            type=gpu.type.name,
            power_w=account.power_w if account else 0.0,
            energy_j=account.total_j if account else 0.0,
            slices=tuple(_slices(fleet.node, gpu.uuid)),
        )


def effectiveness(fleet: FleetNode) -> view.Effectiveness:
    """Return a node's PUE."""
    return view.Effectiveness(fleet.node.name, fleet.pue, measured=fleet.node.HasField("pue"))


def drifts(fleet: FleetNode) -> Iterator[view.Drift]:
    """Yield the profiles that are wrong on a node."""
    for drift in fleet.drifts:
        yield view.Drift(
            node=fleet.node.name,
            model=drift.model,
            variant=drift.variant,
            gpu=drift.gpu,
            slice=drift.slice,
            batch_size=drift.batch_size,
            processes=drift.processes,
            latency_ratio=drift.latency_ratio,
            energy_ratio=drift.energy_ratio,
        )


def _slices(node: Node, gpu_uuid: str) -> Iterator[view.Slice]:
    gpu = next(gpu for gpu in node.gpus if gpu.uuid == gpu_uuid)
    running = {
        (segment.spec.placement.profile, segment.spec.placement.start): segment
        for segment in node.segments
        if segment.spec.gpu_uuid == gpu_uuid
    }
    for piece in gpu.slices:
        where = (piece.placement.profile, piece.placement.start)
        name = f"{where[0]}@{where[1]}"
        segment = running.get(where)
        if segment is None:
            yield view.Slice(name)
            continue
        yield view.Slice(
            placement=name,
            model=segment.spec.model,
            variant=segment.spec.variant,
            stage=segment.spec.stage,
            batch_size=segment.spec.batch_size,
            processes=segment.spec.processes,
            state=word(SegmentState.Name(segment.state), "SEGMENT_STATE_"),
            restarts=segment.restarts,
            reason=segment.reason,
        )


def model(status: ModelStatus) -> view.Model:
    """Return a model's row."""
    return view.Model(
        model=status.model,
        slo_latency_s=status.slo_latency_s,
        p50_s=status.latency_s.get("50"),
        p95_s=status.latency_s.get("95"),
        queue_depth=status.queue_depth,
        in_flight=status.in_flight,
        answered=status.answered,
        failed=status.failed,
        retried=status.retried,
        late=status.late,
        accuracy=status.accuracy,
        variants=tuple(_variants(list(status.instances))),
    )


def _variants(instances: list[InstanceStatus]) -> Iterator[view.Variant]:
    for name in sorted({instance.variant for instance in instances}):
        own = [instance for instance in instances if instance.variant == name]
        yield view.Variant(
            variant=name,
            share=sum(instance.share for instance in own if not instance.stage),
            instances=len(own),
            connected=sum(instance.connected for instance in own),
        )


def plan(value: Plan) -> view.Plan:
    """Return the newest plan's row."""
    return view.Plan(
        version=value.version,
        state=word(PlanState.Name(value.state), "PLAN_STATE_"),
        strategy=value.strategy,
        reason=value.reason,
        parked=tuple(value.prediction.parked_gpus),
    )


def lengths(statistics: ModelStatistics) -> view.Lengths:
    """Return how well a model's lengths are foretold."""
    hits = (SOURCE_EXACT, SOURCE_SEMANTIC)
    judged = sum(each.judged for each in statistics.sources)
    right = sum(each.right for each in statistics.sources)
    return view.Lengths(
        model=statistics.model,
        predictions=sum(each.predictions for each in statistics.sources),
        cache_hits=sum(each.predictions for each in statistics.sources if each.source in hits),
        class_right=right / judged if judged else None,
        prompts=statistics.cache_entries,
    )

"""From messages to the rows that `cinquefoil status` shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from cinquefoil.carbon.v1.carbon_pb2 import Intensity, Provenance, Signal
from cinquefoil.gpuagent.v1.inventory_pb2 import Gpu, Node, SegmentState
from cinquefoil.planner.v1.plan_pb2 import Plan, PlanState
from cinquefoil.planner.v1.planner_pb2 import FleetNode
from cinquefoil.predictor.v1.predictor_pb2 import SOURCE_EXACT, SOURCE_SEMANTIC, ModelStatistics
from cinquefoil.router.v1.router_pb2 import InstanceStatus, ModelStatus
from services.cli.console.variant_names import slice_name
from services.cli.status import view

View = TypeVar("View")


def word(enum_name: str, prefix: str) -> str:
    """Return an enum value's name for people: PLAN_STATE_ACTIVE -> active."""
    return enum_name.removeprefix(prefix).lower()


def same(kind: Callable[..., View], message: Message, **others: Any) -> View:
    """Return a view: fields of the message's that have the same name, and the others."""
    wanted = {field.name for field in fields(cast(Any, kind))} - others.keys()
    copied = {name: getattr(message, name) for name in wanted if hasattr(message, name)}
    return kind(**copied, **others)


def zone(value: Intensity) -> view.Zone:
    """Return a zone's row."""
    return same(
        view.Zone,
        value,
        signal=word(Signal.Name(value.signal), "SIGNAL_"),
        staleness_s=value.staleness.ToNanoseconds() / 1e9,
        provenance=word(Provenance.Name(value.provenance), "PROVENANCE_"),
        percentile=value.percentile if value.HasField("percentile") else None,
    )


def gpus(fleet: FleetNode) -> Iterator[view.Gpu]:
    """Yield a node's GPUs in order of index."""
    energy = {entry.gpu_uuid: entry for entry in fleet.energy}
    for gpu in sorted(fleet.node.gpus, key=lambda gpu: gpu.index):
        account = energy.get(gpu.uuid)
        yield same(
            view.Gpu,
            gpu,
            node=fleet.node.name,
            connected=fleet.connected,
            simulated=fleet.node.simulated,
            type=gpu.type.name,
            power_w=account.power_w if account else 0.0,
            energy_j=account.total_j if account else 0.0,
            slices=tuple(_slices(fleet.node, gpu)),
        )


def effectiveness(fleet: FleetNode) -> view.Effectiveness:
    """Return a node's PUE."""
    return view.Effectiveness(fleet.node.name, fleet.pue, measured=fleet.node.HasField("pue"))


def drifts(fleet: FleetNode) -> Iterator[view.Drift]:
    """Yield the profiles that are wrong on a node."""
    for drift in fleet.drifts:
        yield same(view.Drift, drift, node=fleet.node.name)


def _slices(node: Node, gpu: Gpu) -> Iterator[view.Slice]:
    running = {
        slice_name(segment.spec.placement): segment
        for segment in node.segments
        if segment.spec.gpu_uuid == gpu.uuid
    }
    for each in gpu.slices:
        name = slice_name(each.placement)
        segment = running.get(name)
        if segment is None:
            yield view.Slice(name)
            continue
        yield same(
            view.Slice,
            segment.spec,
            placement=name,
            state=word(SegmentState.Name(segment.state), "SEGMENT_STATE_"),
            restarts=segment.restarts,
            reason=segment.reason,
        )


def model(status: ModelStatus) -> view.Model:
    """Return a model's row."""
    return same(
        view.Model,
        status,
        p50_s=status.latency_s.get("50"),
        p95_s=status.latency_s.get("95"),
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
    state = word(PlanState.Name(value.state), "PLAN_STATE_")
    return same(view.Plan, value, state=state, parked=tuple(value.prediction.parked_gpus))


def lengths(statistics: ModelStatistics) -> view.Lengths:
    """Return how well a model's lengths are predicted."""
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

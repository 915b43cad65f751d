"""Agents' protobuf <-> the planner's words."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from datetime import timedelta

from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2
from services.kit.errors import InvalidArgument
from services.kit.mig import WHOLE, Geometry, Placement, SliceKind
from services.planner.domain import (
    Action,
    CreateSlice,
    DestroySlice,
    GpuType,
    StartSegment,
    StopSegment,
)
from services.planner.fleet import Node, NodeGpu, RunningSegment, SegmentState
from services.planner.plan import SegmentSpec


def node_from(message: inventory_pb2.Node) -> Node:
    """Return a node as its agent reports it.

    Raises:
        InvalidArgument: It has no name, or a GPU or slice that cannot be.
    """
    if not message.name:
        raise InvalidArgument("node.name: required", field="node.name")
    gpus = tuple(_gpu_from(gpu) for gpu in message.gpus)
    slices = {(gpu.uuid, placement) for gpu in gpus for placement in gpu.slices}
    return Node(
        name=message.name,
        zone=message.zone,
        gpus=gpus,
        segments=tuple(_running_from(segment, slices) for segment in message.segments),
    )


def _gpu_from(message: inventory_pb2.Gpu) -> NodeGpu:
    kind = _gpu_type_from(message.type, mig_enabled=message.mig_enabled)
    slices = tuple(placement_from(each.placement) for each in message.slices)
    fault = kind.geometry.problem(slices)
    if not message.uuid or fault:
        raise InvalidArgument(
            f"node.gpus: {message.uuid or 'a GPU without uuid'}: {fault or 'uuid is required'}",
            field="node.gpus",
        )
    return NodeGpu(message.uuid, kind, slices)


def _gpu_type_from(message: inventory_pb2.GpuType, *, mig_enabled: bool) -> GpuType:
    kinds = tuple(
        SliceKind(
            name=profile.name,
            compute_slices=profile.compute_slices,
            memory_slices=profile.memory_slices,
            starts=tuple(profile.starts),
            max_count=profile.max_count,
            sm_count=profile.sm_count,
            memory_bytes=profile.memory_bytes,
            gpu_instance_profile_id=profile.gpu_instance_profile_id,
        )
        for profile in message.profiles
    )
    if not kinds:
        raise InvalidArgument(
            f"node.gpus.type.profiles: GPU type {message.name!r} has none",
            field="node.gpus.type.profiles",
        )
    if not mig_enabled and all(kind.name != WHOLE for kind in kinds):
        kinds = (_whole(message, kinds),)
    return GpuType(
        name=message.name,
        geometry=Geometry(max(message.memory_slices, 1), kinds),
        sm_count=message.sm_count,
        idle_power_w=message.idle_power_w,
        max_power_w=message.max_power_w,
    )


def _whole(message: inventory_pb2.GpuType, kinds: tuple[SliceKind, ...]) -> SliceKind:
    """Return the only slice of a GPU that could be cut but is not in MIG mode."""
    return SliceKind(
        name=WHOLE,
        compute_slices=max(kind.compute_slices for kind in kinds),
        memory_slices=max(message.memory_slices, 1),
        starts=(0,),
        max_count=1,
        sm_count=message.sm_count,
        memory_bytes=max(kind.memory_bytes for kind in kinds),
    )


def _running_from(
    message: inventory_pb2.Segment, slices: AbstractSet[tuple[str, Placement]]
) -> RunningSegment:
    spec = spec_from(message.spec)
    if (spec.gpu_uuid, spec.placement) not in slices:
        raise InvalidArgument(
            f"node.segments.spec: {spec.segment_id} runs on {spec.placement} of GPU "
            f"{spec.gpu_uuid!r}, a slice that the node does not have",
            field="node.segments.spec",
        )
    try:
        state = SegmentState(message.state)
    except ValueError:
        raise InvalidArgument(
            f"node.segments.state: {spec.segment_id} has none", field="node.segments.state"
        ) from None
    return RunningSegment(spec, state, tuple(message.endpoints))


def spec_from(message: inventory_pb2.SegmentSpec) -> SegmentSpec:
    """Return what an agent was asked to run."""
    return SegmentSpec(
        segment_id=message.segment_id,
        model=message.model,
        variant=message.variant,
        batch_size=message.batch_size,
        processes=message.processes,
        gpu_uuid=message.gpu_uuid,
        placement=placement_from(message.placement),
    )


def spec_to(spec: SegmentSpec) -> inventory_pb2.SegmentSpec:
    """Return the message of a segment's specification."""
    return inventory_pb2.SegmentSpec(
        segment_id=spec.segment_id,
        model=spec.model,
        variant=spec.variant,
        batch_size=spec.batch_size,
        processes=spec.processes,
        gpu_uuid=spec.gpu_uuid,
        placement=placement_to(spec.placement),
    )


def placement_from(message: inventory_pb2.Placement) -> Placement:
    """Return where a slice lies."""
    return Placement(message.profile, message.start)


def placement_to(placement: Placement) -> inventory_pb2.Placement:
    """Return the message of a placement."""
    return inventory_pb2.Placement(profile=placement.profile, start=placement.start)


def step_to(step_id: str, action: Action, grace_s: float) -> steps_pb2.Step:
    """Return the step that asks an agent for `action`.

    Args:
        step_id: Unique within the rollout.
        action: What to do.
        grace_s: Time that accepted requests get when a segment stops, s.
    """
    match action:
        case CreateSlice(gpu_uuid, placement):
            create = steps_pb2.CreateSlice(gpu_uuid=gpu_uuid, placement=placement_to(placement))
            return steps_pb2.Step(step_id=step_id, create_slice=create)
        case DestroySlice(gpu_uuid, placement):
            destroy = steps_pb2.DestroySlice(gpu_uuid=gpu_uuid, placement=placement_to(placement))
            return steps_pb2.Step(step_id=step_id, destroy_slice=destroy)
        case StartSegment(segment):
            start = steps_pb2.StartSegment(spec=spec_to(SegmentSpec.of(segment)))
            return steps_pb2.Step(step_id=step_id, start_segment=start)
        case StopSegment(segment_id):
            stop = steps_pb2.StopSegment(segment_id=segment_id)
            stop.grace.FromTimedelta(timedelta(seconds=grace_s))
            return steps_pb2.Step(step_id=step_id, stop_segment=stop)

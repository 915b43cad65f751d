"""Agents' protobuf <-> the planner's records."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import timedelta

from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2
from services.kit.errors import InvalidArgument
from services.kit.mig import WHOLE, Geometry, Placement, SliceKind
from services.kit.rpc.record_mapping import from_message, to_message
from services.kit.segment import SegmentSpec, SegmentState
from services.planner.core.fleet import Node, NodeGpu, RunningSegment
from services.planner.core.model import GpuType
from services.planner.core.placement.actions import (
    Action,
    CreateSlice,
    DestroySlice,
    LockClock,
    StartSegment,
    StopSegment,
)

_HIGHEST_PUE = 3.0
_FIELDS = {CreateSlice: "create_slice", DestroySlice: "destroy_slice", LockClock: "lock_clock"}


def node_from(message: inventory_pb2.Node) -> Node:
    """Return a node as its agent reports it.

    Raises:
        InvalidArgument: It has no name, or a GPU, slice or PUE that cannot be.
    """
    if not message.name:
        raise InvalidArgument.at("node.name", "required")
    gpus = tuple(_gpu_from(gpu) for gpu in message.gpus)
    slices = {(gpu.uuid, placement) for gpu in gpus for placement in gpu.slices}
    return Node(
        name=message.name,
        zone=message.zone,
        gpus=gpus,
        segments=tuple(_running_from(segment, slices) for segment in message.segments),
        pue=_pue_from(message),
    )


def _pue_from(message: inventory_pb2.Node) -> float | None:
    if not message.HasField("pue"):
        return None
    if not 1 <= message.pue <= _HIGHEST_PUE:  # not a number either
        raise InvalidArgument.at(
            "node.pue", f"must be within 1..{_HIGHEST_PUE:g}, got {message.pue}"
        )
    return message.pue


def _gpu_from(message: inventory_pb2.Gpu) -> NodeGpu:
    kind = _gpu_type_from(message)
    slices = tuple(from_message(each.placement, Placement) for each in message.slices)
    fault = kind.geometry.problem(slices)
    if not message.uuid or fault:
        raise InvalidArgument.at(
            "node.gpus", f"{message.uuid or 'a GPU without uuid'}: {fault or 'uuid is required'}"
        )
    return NodeGpu(message.uuid, kind, slices, message.locked_clock_mhz, message.wanted)


def _gpu_type_from(gpu: inventory_pb2.Gpu) -> GpuType:
    message = gpu.type
    kinds = tuple(from_message(profile, SliceKind) for profile in message.profiles)
    if not kinds:
        raise InvalidArgument.at("node.gpus.type.profiles", f"GPU type {message.name!r} has none")
    if not gpu.mig_enabled and all(kind.name != WHOLE for kind in kinds):
        kinds = (_whole(message, kinds),)
    return from_message(
        message,
        GpuType,
        geometry=Geometry(max(message.memory_slices, 1), kinds),
        max_clock_mhz=message.max_clock_mhz if gpu.clock_lockable else 0,
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
    spec = from_message(message.spec, SegmentSpec)
    if (spec.gpu_uuid, spec.placement) not in slices:
        raise InvalidArgument.at(
            "node.segments.spec",
            f"{spec.segment_id} runs on {spec.placement} of GPU "
            f"{spec.gpu_uuid!r}, a slice that the node does not have",
        )
    try:
        state = SegmentState(message.state)
    except ValueError:
        raise InvalidArgument.at("node.segments.state", f"{spec.segment_id} has none") from None
    return RunningSegment(spec, state, tuple(message.endpoints))


def step_to(step_id: str, action: Action, grace_s: float) -> steps_pb2.Step:
    """Return the step that has an agent carry out `action`.

    Args:
        step_id: Unique within the rollout.
        action: What to do.
        grace_s: Time that accepted requests get when a segment stops, s.
    """
    step = steps_pb2.Step(step_id=step_id)
    _fill(step, action, grace_s)
    return step


def change_to(step_id: str, groups: Iterable[Iterable[tuple[Action, float]]]) -> steps_pb2.Step:
    """Return the step that has an agent carry out several actions as one: all, or none.

    Args:
        step_id: Unique within the rollout.
        groups: In order; actions of one group at the same time, each with its grace, s.
    """
    step = steps_pb2.Step(step_id=step_id, change=steps_pb2.Change())
    for group in groups:
        actions = step.change.groups.add().actions
        for action, grace_s in group:
            _fill(actions.add(), action, grace_s)
    return step


def _fill(message: steps_pb2.Step | steps_pb2.Action, action: Action, grace_s: float) -> None:
    match action:
        case StartSegment(segment):
            spec = to_message(segment.spec, inventory_pb2.SegmentSpec)
            message.start_segment.spec.MergeFrom(spec)
        case StopSegment(segment_id):
            message.stop_segment.segment_id = segment_id
            message.stop_segment.grace.FromTimedelta(timedelta(seconds=grace_s))
        case _:
            part = getattr(message, _FIELDS[type(action)])
            part.MergeFrom(to_message(action, type(part)))

"""Agents' protobuf <-> the planner's records."""

from collections.abc import Collection, Sized
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Final

from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2
from cinquefoil.gpuagent.v1.records import (
    CreateSlice,
    DestroySlice,
    LockClock,
    Performance,
    Placement,
    Segment,
    SegmentState,
    SliceProfile,
)
from cinquefoil.planner.v1 import planner_pb2
from services.kit.errors import InvalidArgument
from services.kit.hardware import gpu_types
from services.kit.mig import WHOLE, Geometry, full_layouts
from services.kit.power_limits import MOST_GPU_W
from services.kit.rpc.condition_messages import conditions_from
from services.kit.rpc.figures import Bounds, check_figures
from services.kit.rpc.record_mapping import from_message, to_message
from services.kit.segment import (
    MOST_BATCH,
    MOST_PROCESSES,
    check_name,
    check_spec,
    gpus_of,
    whole_number,
)
from services.planner.core.cycle.environment import NodeChange
from services.planner.core.fleet import Node, NodeGpu
from services.planner.core.model import GpuType
from services.planner.core.placement.actions import Action, StartSegment, StopSegment

_HIGHEST_PUE = 3.0
_MOST_GPUS: Final = 128
_MOST_SEGMENTS: Final = 4096
_MOST_PROFILES: Final = 32
_MOST_STARTS: Final = 32
_MOST_PORT: Final = 65_535
_MOST_GPU_TYPES: Final = 256
_OF_A_TYPE: Final[Bounds] = {
    "memory_slices": (0, 1024),
    "sm_count": (0, 4096),
    "idle_power_w": (0, MOST_GPU_W),
    "context_power_w": (0, MOST_GPU_W),
    "max_power_w": (0, MOST_GPU_W),
    "max_clock_mhz": (0, 1e5),
    "core_gmacs_per_s": (0, 1e6),
}
_OF_A_GPU: Final[Bounds] = {
    "index": (0, 1023),
    "clock_mhz": (0, 1e5),
    "locked_clock_mhz": (0, 1e5),
}
_OF_A_DRIFT: Final[Bounds] = {
    "batch_size": (0, MOST_BATCH),
    "processes": (0, MOST_PROCESSES),
    "latency_ratio": (0, 1e3),
    "energy_ratio": (0, 1e3),
}
_OF_A_PROFILE: Final[Bounds] = {
    "compute_slices": (1, 1024),
    "memory_slices": (1, 1024),
    "max_count": (1, 1024),
    "sm_count": (0, 4096),
    "memory_bytes": (0, 2**45),
}
_OF_A_PERFORMANCE: Final[Bounds] = {
    "fp16_tflops": (1e-3, 1e6),
    "memory_gb_per_s": (1e-3, 1e6),
}
_FIELDS = {CreateSlice: "create_slice", DestroySlice: "destroy_slice", LockClock: "lock_clock"}


def node_from(message: inventory_pb2.Node) -> Node:
    """Return a node from its agent's report.

    Raises:
        InvalidArgument: It has no name, or an invalid GPU, slice, segment or PUE.
    """
    check_name("node.name", message.name)
    _check_length("node.gpus", message.gpus, _MOST_GPUS)
    _check_length("node.segments", message.segments, _MOST_SEGMENTS)
    gpus = tuple(_gpu_from(gpu) for gpu in message.gpus)
    slices = {(gpu.uuid, placement) for gpu in gpus for placement in gpu.slices}
    return Node(
        name=message.name,
        zone=message.zone,
        gpus=gpus,
        segments=tuple(_running_from(segment, slices) for segment in message.segments),
        pue=_pue_from(message),
        conditions=conditions_from(message.conditions),
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
    kind = _gpu_type_from(
        message.type.SerializeToString(), message.mig_enabled, message.clock_lockable
    )
    slices = tuple(from_message(each.placement, Placement) for each in message.slices)
    check_name("node.gpus.uuid", message.uuid)
    check_figures("node.gpus", message, _OF_A_GPU)
    fault = kind.geometry.problem(slices)
    if fault:
        raise InvalidArgument.at("node.gpus", f"{message.uuid}: {fault}")
    return NodeGpu(message.uuid, kind, slices, message.locked_clock_mhz, message.wanted)


@lru_cache(maxsize=_MOST_GPU_TYPES)
def _gpu_type_from(encoded: bytes, mig_enabled: bool, clock_lockable: bool) -> GpuType:
    """Return a GPU type: one object for all GPUs of it, so that it is converted once."""
    message = inventory_pb2.GpuType.FromString(encoded)
    _check_gpu_type(message)
    kinds = tuple(from_message(profile, SliceProfile) for profile in message.profiles)
    if not mig_enabled and all(kind.name != WHOLE for kind in kinds):
        kinds = (_whole(message, kinds),)
    geometry = Geometry(max(message.memory_slices, 1), kinds)
    try:
        full_layouts(geometry)
    except ValueError as error:
        raise InvalidArgument.at("node.gpus.type.profiles", str(error)) from None
    return from_message(
        message,
        GpuType,
        geometry=geometry,
        max_clock_mhz=message.max_clock_mhz if clock_lockable else 0,
        context_power_w=message.context_power_w or message.idle_power_w,
        performance=_performance_from(message),
    )


def _performance_from(message: inventory_pb2.GpuType) -> Performance | None:
    """Return a GPU's performance from its agent's report; of older agents: by the type's name."""
    known = gpu_types.names()
    if not message.HasField("performance"):
        return gpu_types.load(message.name).performance if message.name in known else None
    check_figures("node.gpus.type.performance", message.performance, _OF_A_PERFORMANCE)
    found = from_message(message.performance, Performance)
    return found if found.like in known else replace(found, like=gpu_types.REFERENCE)


def _check_gpu_type(message: inventory_pb2.GpuType) -> None:
    """Refuse implausible GPU types: plans for the whole fleet are computed with them."""
    check_name("node.gpus.type.name", message.name)
    check_figures("node.gpus.type", message, _OF_A_TYPE)
    at = "node.gpus.type.profiles"
    if not 0 < len(message.profiles) <= _MOST_PROFILES:
        raise InvalidArgument.at(
            at, f"must have 1..{_MOST_PROFILES}, {message.name!r} has {len(message.profiles)}"
        )
    for profile in message.profiles:
        check_name(f"{at}.name", profile.name)
        check_figures(at, profile, _OF_A_PROFILE)
        _check_length(f"{at}.starts", profile.starts, _MOST_STARTS)
        last = max(message.memory_slices, 1) - profile.memory_slices
        if any(start > last for start in profile.starts):
            raise InvalidArgument.at(f"{at}.starts", f"{profile.name} must start at 0..{last}")
    names = [profile.name for profile in message.profiles]
    if len(set(names)) < len(names):
        raise InvalidArgument.at(f"{at}.name", "a profile is there twice")


def check_drifts(drifts: Collection[planner_pb2.ProfileDrift]) -> None:
    """Refuse drifts of profiles that cannot be: commands and the console show them.

    Raises:
        InvalidArgument: There are too many, or a figure is out of bounds.
    """
    _check_length("drifts", drifts, _MOST_SEGMENTS)
    for drift in drifts:
        check_figures("drifts", drift, _OF_A_DRIFT)


def _check_length(field: str, values: Sized, most: int) -> None:
    if len(values) > most:
        raise InvalidArgument.at(field, f"must have at most {most} entries, got {len(values)}")


def _whole(message: inventory_pb2.GpuType, kinds: tuple[SliceProfile, ...]) -> SliceProfile:
    """Return the only slice of a GPU that supports MIG but is not in MIG mode."""
    return SliceProfile(
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
) -> Segment:
    segment = from_message(message, Segment)
    spec = segment.spec
    check_spec(spec)
    for uuid in gpus_of(spec):
        if (uuid, spec.placement) not in slices:
            raise InvalidArgument.at(
                "node.segments.spec",
                f"{spec.segment_id} runs on {spec.placement} of GPU {uuid!r}, a slice that the "
                "node does not have",
            )
    _check_length("node.segments.endpoints", message.endpoints, MOST_PROCESSES)
    for endpoint in segment.endpoints:
        if not whole_number(endpoint.rpartition(":")[2], _MOST_PORT):
            raise InvalidArgument.at("node.segments.endpoints", f"{endpoint[:64]!r} has no port")
    if segment.state is SegmentState.UNSPECIFIED:
        raise InvalidArgument.at("node.segments.state", f"{spec.segment_id} has none")
    return segment


def step_to(change: NodeChange, term: int) -> steps_pb2.Step:
    """Return the step for an agent's change: of several actions all are done, or none.

    Args:
        change: The change.
        term: Term of the planner that leads.
    """
    step = steps_pb2.Step(step_id=change.change_id, term=term)
    if sum(map(len, change.groups)) == 1:
        _fill(step, *change.groups[0][0])
        return step
    for group in change.groups:
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

"""The agent's words <-> protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cinquefoil.gpuagent.v1 import inventory_pb2 as pb
from cinquefoil.gpuagent.v1 import steps_pb2
from services.gpuagent.device import GpuInfo
from services.gpuagent.domain import (
    Action,
    ClockState,
    CreateSlice,
    DestroySlice,
    LockClock,
    Node,
    Outcome,
    Segment,
    SegmentSpec,
    SegmentState,
    StartSegment,
    StopSegment,
)
from services.gpuagent.energy import Account
from services.gpuagent.gpu_table import GpuModel
from services.kit.errors import InvalidArgument
from services.kit.mig import Placement, SliceKind

_STATES: Final = {
    SegmentState.STARTING: pb.SEGMENT_STATE_STARTING,
    SegmentState.READY: pb.SEGMENT_STATE_READY,
    SegmentState.DEGRADED: pb.SEGMENT_STATE_DEGRADED,
    SegmentState.DRAINING: pb.SEGMENT_STATE_DRAINING,
}


def node(value: Node) -> pb.Node:
    """Return a node's message."""
    return pb.Node(
        name=value.name,
        zone=value.zone,
        simulated=value.simulated,
        gpus=[_gpu(gpu, value.clocks) for gpu in value.gpus],
        segments=[_segment(segment) for segment in value.segments],
    )


def energy(accounts: Mapping[str, Account]) -> list[pb.GpuEnergy]:
    """Return the messages of accounts, in their order."""
    return [_gpu_energy(uuid, account) for uuid, account in accounts.items()]


def action(step: steps_pb2.Step) -> Action:
    """Return what a step asks for.

    Raises:
        InvalidArgument: Nothing, or something that cannot be.
    """
    match step.WhichOneof("action"):
        case "create_slice":
            create = step.create_slice
            return CreateSlice(create.gpu_uuid, _placement(create.placement))
        case "destroy_slice":
            destroy = step.destroy_slice
            return DestroySlice(destroy.gpu_uuid, _placement(destroy.placement))
        case "lock_clock":
            return LockClock(step.lock_clock.gpu_uuid, step.lock_clock.clock_mhz)
        case "start_segment":
            return StartSegment(_spec(step.start_segment.spec))
        case "stop_segment":
            stop = step.stop_segment
            return StopSegment(stop.segment_id, stop.grace.ToTimedelta().total_seconds())
    raise InvalidArgument("action: this agent knows no such action", field="action")


def result(step_id: str, outcome: Outcome) -> steps_pb2.StepResult:
    """Return the message of a step's outcome."""
    error = outcome.error
    return steps_pb2.StepResult(
        step_id=step_id,
        ok=error is None,
        status=error.status if error else "",
        message=error.message if error else "",
        elapsed_s=outcome.elapsed_s,
    )


def _placement(message: pb.Placement) -> Placement:
    if not message.profile:
        raise InvalidArgument("placement.profile: required", field="placement.profile")
    return Placement(message.profile, message.start)


def _spec(message: pb.SegmentSpec) -> SegmentSpec:
    return SegmentSpec(
        segment_id=message.segment_id,
        model=message.model,
        variant=message.variant,
        batch_size=message.batch_size,
        processes=message.processes,
        gpu_uuid=message.gpu_uuid,
        placement=_placement(message.placement),
    )


def _gpu(gpu: GpuInfo, clocks: ClockState) -> pb.Gpu:
    return pb.Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        type=_type(gpu.model),
        mig_enabled=gpu.mig_enabled,
        slices=[
            pb.Slice(placement=_placed(placement), uuid=uuid) for placement, uuid in gpu.slices
        ],
        clock_mhz=gpu.clock_mhz,
        locked_clock_mhz=clocks.held_mhz.get(gpu.uuid, 0),
        clock_lockable=clocks.may_lock,
    )


def _type(model: GpuModel) -> pb.GpuType:
    return pb.GpuType(
        name=model.name,
        product_name=model.product_name,
        memory_slices=model.geometry.memory_slices,
        sm_count=model.sm_count,
        profiles=[_profile(kind) for kind in model.geometry.kinds],
        idle_power_w=model.idle_power_w,
        max_power_w=model.max_power_w,
        max_clock_mhz=model.max_clock_mhz,
    )


def _profile(kind: SliceKind) -> pb.SliceProfile:
    return pb.SliceProfile(
        name=kind.name,
        gpu_instance_profile_id=kind.gpu_instance_profile_id,
        compute_slices=kind.compute_slices,
        memory_slices=kind.memory_slices,
        starts=kind.starts,
        max_count=kind.max_count,
        sm_count=kind.sm_count,
        memory_bytes=kind.memory_bytes,
    )


def _placed(placement: Placement) -> pb.Placement:
    return pb.Placement(profile=placement.profile, start=placement.start)


def _segment(segment: Segment) -> pb.Segment:
    spec = segment.spec
    return pb.Segment(
        spec=pb.SegmentSpec(
            segment_id=spec.segment_id,
            model=spec.model,
            variant=spec.variant,
            batch_size=spec.batch_size,
            processes=spec.processes,
            gpu_uuid=spec.gpu_uuid,
            placement=_placed(spec.placement),
        ),
        state=_STATES[segment.state],
        endpoints=segment.endpoints,
        restarts=segment.restarts,
    )


def _gpu_energy(uuid: str, account: Account) -> pb.GpuEnergy:
    return pb.GpuEnergy(
        gpu_uuid=uuid,
        total_j=account.total_j,
        idle_j=account.idle_j,
        unattributed_j=account.unattributed_j,
        power_w=account.power_w,
        method=account.method,
        segments=[
            pb.SegmentEnergy(
                segment_id=segment_id,
                model=entry.model,
                variant=entry.variant,
                active_j=entry.active_j,
                requests=entry.requests,
                busy_s=entry.busy_s,
            )
            for segment_id, entry in account.segments.items()
        ],
    )

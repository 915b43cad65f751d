"""Changes and desired states <-> protobuf."""

from __future__ import annotations

from datetime import timedelta

from cinquefoil.gpuagent.v1 import gpuagent_pb2, inventory_pb2, steps_pb2
from services.gpuagent.core.model import (
    Action,
    CreateSlice,
    DestroySlice,
    LockClock,
    SetMigMode,
    StartSegment,
    StopSegment,
    Transaction,
)
from services.gpuagent.core.reconcile import DesiredGpu
from services.gpuagent.planner_link import convert
from services.gpuagent.reconfigure.reconfigurer import Reconfigured


def desired(request: gpuagent_pb2.ReconfigureRequest) -> tuple[DesiredGpu, ...]:
    """Return what a request asks for.

    Raises:
        InvalidArgument: A value that cannot be.
    """
    return tuple(_desired_gpu(gpu) for gpu in request.gpus)


def reconfigured(value: Reconfigured) -> gpuagent_pb2.ReconfigureResponse:
    """Return the message of what was done."""
    return gpuagent_pb2.ReconfigureResponse(
        change=_change(value.change), gaps=value.gaps, elapsed_s=value.elapsed_s
    )


def _desired_gpu(message: gpuagent_pb2.DesiredGpu) -> DesiredGpu:
    return DesiredGpu(
        gpu_uuid=message.gpu_uuid,
        slices=tuple(convert.placement(each) for each in message.slices),
        segments=tuple(convert.spec(_here(each, message.gpu_uuid)) for each in message.segments),
        mig_enabled=message.mig_enabled if message.HasField("mig_enabled") else None,
        clock_mhz=message.clock_mhz if message.HasField("clock_mhz") else None,
    )


def _here(message: inventory_pb2.SegmentSpec, gpu_uuid: str) -> inventory_pb2.SegmentSpec:
    """Return a segment's message with its GPU, which it need not repeat."""
    found = inventory_pb2.SegmentSpec()
    found.CopyFrom(message)
    found.gpu_uuid = message.gpu_uuid or gpu_uuid
    return found


def _change(change: Transaction) -> steps_pb2.Change:
    return steps_pb2.Change(
        groups=[
            steps_pb2.ActionGroup(actions=[_action(each) for each in group])
            for group in change.groups
        ]
    )


def _action(action: Action) -> steps_pb2.Action:
    message = steps_pb2.Action()
    match action:
        case CreateSlice(uuid, placement):
            message.create_slice.gpu_uuid = uuid
            message.create_slice.placement.CopyFrom(convert.placed(placement))
        case DestroySlice(uuid, placement):
            message.destroy_slice.gpu_uuid = uuid
            message.destroy_slice.placement.CopyFrom(convert.placed(placement))
        case StartSegment(spec):
            message.start_segment.spec.CopyFrom(convert.spec_message(spec))
        case StopSegment(segment_id, grace_s):
            message.stop_segment.segment_id = segment_id
            message.stop_segment.grace.FromTimedelta(timedelta(seconds=grace_s))
        case LockClock(uuid, clock_mhz):
            message.lock_clock.gpu_uuid = uuid
            message.lock_clock.clock_mhz = clock_mhz
        case SetMigMode(uuid, enabled):
            message.set_mig_mode.gpu_uuid = uuid
            message.set_mig_mode.enabled = enabled
    return message

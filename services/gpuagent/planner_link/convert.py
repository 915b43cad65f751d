"""The agent's values <-> protobuf."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from cinquefoil.condition.v1.records import Condition
from cinquefoil.gpuagent.v1 import gpuagent_pb2, records, steps_pb2
from cinquefoil.gpuagent.v1 import inventory_pb2 as pb
from cinquefoil.gpuagent.v1.records import (
    CreateSlice,
    DesiredGpu,
    DestroySlice,
    LockClock,
    Placement,
    SegmentSpec,
    SetMigMode,
    StartSegment,
    StopSegment,
)
from cinquefoil.planner.v1 import planner_pb2
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.model import Action, ClockState, Node, Outcome, Transaction
from services.gpuagent.energy.core.account import Account
from services.gpuagent.profile_drift.core.drift import DriftTrack, SegmentKind
from services.gpuagent.reconfigure.transactions import Reconfigured
from services.kit.errors import InvalidArgument
from services.kit.hardware.gpu_types import GpuModel
from services.kit.rpc.condition_messages import condition_messages
from services.kit.rpc.record_mapping import from_message, to_message
from services.kit.segment import check_spec

_MOST_CLOCK_MHZ: Final = 100_000
_MOST_GRACE_S: Final = 86_400
_MOST_START: Final = 1024


def node(value: Node, conditions: Iterable[Condition]) -> pb.Node:
    """Return a node's message, with its conditions."""
    return pb.Node(
        name=value.name,
        zone=value.zone,
        simulated=value.simulated,
        gpus=[_gpu(gpu, value.clocks) for gpu in value.gpus],
        segments=[to_message(segment, pb.Segment) for segment in value.segments],
        pue=value.pue,
        conditions=condition_messages(conditions),
    )


def energy(accounts: Mapping[str, Account]) -> list[pb.GpuEnergy]:
    """Return the messages of accounts, in their order."""
    return [_gpu_energy(uuid, account) for uuid, account in accounts.items()]


def step(message: steps_pb2.Step) -> Action | Transaction:
    """Return the actions of a step.

    Raises:
        InvalidArgument: Nothing, or something that cannot be.
    """
    if message.WhichOneof("action") != "change":
        return action(message)
    groups = message.change.groups
    return Transaction(tuple(tuple(action(each) for each in group.actions) for group in groups))


def action(message: steps_pb2.Step | steps_pb2.Action) -> Action:
    """Return the action of a message.

    Raises:
        InvalidArgument: Nothing, or something that cannot be.
    """
    name = message.WhichOneof("action")
    found = None if name is None else getattr(from_message(message, records.Action), name, None)
    match found:
        case None:
            raise InvalidArgument.at("action", "this agent knows no such action")
        case CreateSlice(_, place) | DestroySlice(_, place):
            _check_placement(place)
        case StartSegment(spec):
            _check(spec)
        case LockClock(_, clock_mhz):
            _check_range("clock_mhz", clock_mhz, _MOST_CLOCK_MHZ)
        case StopSegment(_, grace):
            _check_range("grace", grace.total_seconds(), _MOST_GRACE_S)
    return cast("Action", found)


def result(step_id: str, outcome: Outcome) -> steps_pb2.StepResult:
    """Return the message of a step's outcome."""
    error = outcome.error
    return steps_pb2.StepResult(
        step_id=step_id,
        ok=error is None,
        status=error.status if error else "",
        message=error.message if error else "",
        elapsed_s=outcome.elapsed_s,
        not_restored=outcome.not_restored,
    )


def _check(spec: SegmentSpec) -> SegmentSpec:
    _check_placement(spec.placement)
    check_spec(spec)
    return spec


def _check_placement(placement: Placement) -> None:
    if not placement.profile:
        raise InvalidArgument.at("placement.profile", "required")
    _check_range("placement.start", placement.start, _MOST_START)


def _check_range(field: str, value: float, most: float) -> None:
    if not 0 <= value <= most:
        raise InvalidArgument.at(field, f"must be 0..{most:g}, got {value:g}")


def drifts(tracks: Mapping[SegmentKind, DriftTrack]) -> planner_pb2.ProfileDrifts:
    """Return the message of wrong profiles."""
    found = planner_pb2.ProfileDrifts()
    for kind, track in tracks.items():
        message = to_message(kind, planner_pb2.ProfileDrift)
        message.latency_ratio = track.seen.latency_ratio
        message.energy_ratio = track.seen.energy_ratio
        found.drifts.append(message)
    return found


def _gpu(gpu: GpuInfo, clocks: ClockState) -> pb.Gpu:
    return pb.Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        type=_type(gpu.model),
        mig_enabled=gpu.mig_enabled,
        slices=[
            pb.Slice(placement=to_message(place, pb.Placement), uuid=uuid)
            for place, uuid in gpu.slices
        ],
        clock_mhz=gpu.clock_mhz,
        locked_clock_mhz=clocks.held_mhz.get(gpu.uuid, 0),
        clock_lockable=clocks.may_lock,
    )


def _type(model: GpuModel) -> pb.GpuType:
    message = to_message(model, pb.GpuType)
    message.memory_slices = model.geometry.memory_slices
    message.profiles.extend(to_message(kind, pb.SliceProfile) for kind in model.geometry.kinds)
    message.max_clock_mhz = model.max_clock_mhz
    return message


def _gpu_energy(uuid: str, account: Account) -> pb.GpuEnergy:
    message = pb.GpuEnergy(
        gpu_uuid=uuid,
        total_j=account.total_j,
        idle_j=account.idle_j,
        unattributed_j=account.unattributed_j,
        power_w=account.power_w,
        method=account.method,
        error_ratio=account.error_ratio,
        segments=[to_message(entry, pb.SegmentEnergy) for entry in account.segments.values()],
    )
    if account.since_s:
        message.since.FromNanoseconds(round(account.since_s * 1e9))
    return message


# ---- desired states and transactions -------------------------------------------------------------


def desired(request: gpuagent_pb2.ReconfigureRequest) -> tuple[DesiredGpu, ...]:
    """Return the GPUs' desired states.

    Raises:
        InvalidArgument: A value that cannot be.
    """
    return tuple(map(_desired_gpu, request.gpus))


def _desired_gpu(message: gpuagent_pb2.DesiredGpu) -> DesiredGpu:
    found = from_message(message, DesiredGpu)
    for each in found.slices:
        _check_placement(each)
    segments = (replace(each, gpu_uuid=each.gpu_uuid or found.gpu_uuid) for each in found.segments)
    return replace(found, segments=tuple(map(_check, segments)))


def reconfigured(value: Reconfigured) -> gpuagent_pb2.ReconfigureResponse:
    """Return the message of what was done."""
    groups = [
        steps_pb2.ActionGroup(actions=[_action(each) for each in group])
        for group in value.transaction.groups
    ]
    return gpuagent_pb2.ReconfigureResponse(
        change=steps_pb2.Change(groups=groups), gaps=value.gaps, elapsed_s=value.elapsed_s
    )


def _action(action: Action) -> steps_pb2.Action:
    field: dict[str, Any] = {_FIELDS[type(action)]: action}
    return to_message(records.Action(**field), steps_pb2.Action)


_FIELDS: Final[Mapping[type[Action], str]] = {
    CreateSlice: "create_slice",
    DestroySlice: "destroy_slice",
    LockClock: "lock_clock",
    SetMigMode: "set_mig_mode",
    StartSegment: "start_segment",
    StopSegment: "stop_segment",
}
"""Fields of `Action` by what they hold."""


def power_share(message: planner_pb2.PowerShare) -> tuple[float, str]:
    """Return the most power of a node's devices, W (infinite: any), and the setting it is from."""
    known = message.HasField("limit_w") and not math.isnan(message.limit_w)
    return max(message.limit_w, 0.0) if known else math.inf, message.setting

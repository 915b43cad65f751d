"""Rules of transactions: validation, scope, and undo. Pure.

Every action requests a state, not a move: "exists", "runs", "is held at". So the way back from
anywhere inside a transaction is itself a transaction, made of what it touches as that was before,
and can be tried again and again.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cinquefoil.gpuagent.v1.records import (
    CreateSlice,
    DestroySlice,
    LockClock,
    Placement,
    SegmentSpec,
    SegmentState,
    SetMigMode,
    StartSegment,
    StopSegment,
)
from services.gpuagent.core.model import Action, Node, Transaction
from services.kit.errors import FailedPrecondition, InvalidArgument, NotFound
from services.kit.mig import WHOLE
from services.kit.segment import gpus_of

UNDO_GRACE: Final = timedelta(seconds=1)
"""For segments that a transaction started: no client knows them yet."""


@dataclass(frozen=True, slots=True)
class PriorSlice:
    """A place for a slice. Attributes: gpu_uuid, placement, existed (a slice was there)."""

    gpu_uuid: str
    placement: Placement
    existed: bool


@dataclass(frozen=True, slots=True)
class PriorState:
    """Prior state of everything that a transaction touches.

    Attributes:
        slices: Places of slices, each once.
        segments: What ran under this id; None: nothing.
        clocks_mhz: SM clock held, by GPU, MHz; 0: none.
        mig_modes: MIG mode in force, by GPU.
    """

    slices: tuple[PriorSlice, ...]
    segments: Mapping[str, SegmentSpec | None]
    clocks_mhz: Mapping[str, int]
    mig_modes: Mapping[str, bool]


def check(transaction: Transaction, node: Node) -> None:
    """Refuse a transaction that cannot be, before anything is done.

    Raises:
        InvalidArgument: It names a thing twice, or a clock that the GPU does not have.
        NotFound: The node has no such GPU.
        FailedPrecondition: A slice was divided by another program.
    """
    named = Counter(_thing(action) for action in transaction.actions)
    twice = next((thing for thing, count in named.items() if count > 1), None)
    if twice is not None:
        raise InvalidArgument.at("change", f"names {' '.join(map(str, twice))} twice")
    gpus = {gpu.uuid: gpu for gpu in node.gpus}
    for action in transaction.actions:
        for uuid in named_gpus(action):
            if uuid not in gpus:
                raise NotFound(f"this node has no GPU {uuid}", field="gpu_uuid")
        if isinstance(action, LockClock) and action.clock_mhz:
            gpus[action.gpu_uuid].model.check_clock(action.clock_mhz)
        if (
            isinstance(action, CreateSlice | DestroySlice)
            and action.placement in gpus[action.gpu_uuid].divided
        ):
            raise FailedPrecondition(
                f"{action.placement} on {action.gpu_uuid} is divided into compute instances that "
                "are not ours",
                reason="SLICE_DIVIDED",
            )


def outstanding(transaction: Transaction, node: Node) -> Transaction:
    """Return the actions that remain; empty where the node is as the transaction requests."""
    there = _slots(node)
    running = {each.spec.segment_id for each in node.segments}
    answering = (each for each in node.segments if each.state is SegmentState.READY)
    ready = {each.spec.segment_id: each.spec for each in answering}
    gpus = {gpu.uuid: gpu for gpu in node.gpus}

    def done(action: Action) -> bool:
        match action:
            case CreateSlice(uuid, placement):
                return (uuid, placement) in there
            case DestroySlice(uuid, placement):
                return (uuid, placement) not in there and placement not in gpus[uuid].leftovers
            case StartSegment(spec):
                return ready.get(spec.segment_id) == spec
            case StopSegment(segment_id):
                return segment_id not in running
            case LockClock(uuid, clock_mhz):
                return node.clocks.held_mhz.get(uuid, 0) == clock_mhz
            case SetMigMode(uuid, enabled):
                return gpus[uuid].mig_enabled == gpus[uuid].mig_pending == enabled

    groups = (tuple(each for each in group if not done(each)) for group in transaction.groups)
    return Transaction(tuple(filter(None, (_swept(transaction, node), *groups))))


def before(transaction: Transaction, node: Node) -> PriorState:
    """Return the present state of everything on `node` that `transaction` touches."""
    there = _slots(node)
    running = {each.spec.segment_id: each.spec for each in node.segments}
    modes = {gpu.uuid: gpu.mig_enabled for gpu in node.gpus}
    segments = (
        each.spec if isinstance(each, StartSegment) else each
        for each in transaction.actions
        if isinstance(each, StartSegment | StopSegment)
    )
    return PriorState(
        slices=tuple(
            PriorSlice(each.gpu_uuid, each.placement, (each.gpu_uuid, each.placement) in there)
            for each in transaction.actions
            if isinstance(each, CreateSlice | DestroySlice)
        ),
        segments={each.segment_id: running.get(each.segment_id) for each in segments},
        clocks_mhz={
            each.gpu_uuid: node.clocks.held_mhz.get(each.gpu_uuid, 0)
            for each in transaction.actions
            if isinstance(each, LockClock)
        },
        mig_modes={
            each.gpu_uuid: modes[each.gpu_uuid]
            for each in transaction.actions
            if isinstance(each, SetMigMode)
        },
    )


def undo(then: PriorState) -> Transaction:
    """Return the transaction that leads back to `then` from wherever a transaction has got to."""
    absent = (each for each in then.slices if not each.existed)
    present = (each for each in then.slices if each.existed)
    groups: tuple[tuple[Action, ...], ...] = (
        tuple(StopSegment(name, UNDO_GRACE) for name, spec in then.segments.items() if not spec),
        tuple(DestroySlice(each.gpu_uuid, each.placement) for each in absent),
        tuple(SetMigMode(uuid, enabled) for uuid, enabled in then.mig_modes.items()),
        tuple(CreateSlice(each.gpu_uuid, each.placement) for each in present),
        tuple(LockClock(uuid, clock_mhz) for uuid, clock_mhz in then.clocks_mhz.items()),
        tuple(StartSegment(spec) for spec in then.segments.values() if spec),
    )
    return Transaction(tuple(filter(None, groups)))


def named_gpus(action: Action) -> tuple[str, ...]:
    """Return the GPUs that an action names; none where it names a segment only."""
    match action:
        case StartSegment(spec):
            return gpus_of(spec)
        case StopSegment():
            return ()
        case _:
            return (action.gpu_uuid,)


def _thing(action: Action) -> tuple[object, ...]:
    """Return the object of an action; a transaction names each object once."""
    match action:
        case CreateSlice(uuid, placement) | DestroySlice(uuid, placement):
            return "slice", placement, "of", uuid
        case StartSegment(spec):
            return "segment", spec.segment_id
        case StopSegment(segment_id):
            return "segment", segment_id
        case LockClock(uuid):
            return "the clock of", uuid
        case SetMigMode(uuid):
            return "the MIG mode of", uuid


def _slots(node: Node) -> frozenset[tuple[str, Placement]]:
    return frozenset((gpu.uuid, placement) for gpu in node.gpus for placement, _ in gpu.slices)


def _swept(transaction: Transaction, node: Node) -> tuple[Action, ...]:
    """Return the removal of empty GPU instances that lie where slices are to come.

    A crash between the two calls that create a slice leaves one; nothing can run on it.
    """
    named = {_thing(action) for action in transaction.actions}
    gpus = {gpu.uuid: gpu for gpu in node.gpus}
    found: dict[Action, None] = {}
    for action in transaction.actions:
        if isinstance(action, CreateSlice) and action.placement.profile != WHOLE:
            gpu = gpus[action.gpu_uuid]
            for leftover in gpu.leftovers:
                removal = DestroySlice(gpu.uuid, leftover)
                if _thing(removal) not in named and gpu.model.geometry.overlap(
                    leftover, action.placement
                ):
                    found[removal] = None
    return tuple(found)

"""Transactions: what they may name, what of them is still to be done, and the way back."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import (
    CreateSlice,
    DesiredGpu,
    DestroySlice,
    LockClock,
    Placement,
    SegmentState,
    SetMigMode,
    StartSegment,
    StopSegment,
)
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.model import Action, Node, Transaction
from services.gpuagent.core.reconcile import reconcile
from services.gpuagent.core.transaction_rules import (
    UNDO_GRACE,
    PriorSlice,
    PriorState,
    before,
    check,
    named_gpus,
    outstanding,
    undo,
)
from services.kit.errors import FailedPrecondition, InvalidArgument, NotFound
from services.kit.mig import WHOLE
from tests.support.gpuagent.desired_states import (
    EVERYTHING,
    GPUS,
    HALF,
    carried_out,
    gpu,
    node_of,
    segment,
    situations,
)

UUID = GPUS[0]
SMALL = Placement("1g.6gb", 2)
SPEC = segment("s", HALF[0])
EVERY_ACTION: tuple[Action, ...] = (
    CreateSlice(UUID, HALF[0]),
    DestroySlice(UUID, HALF[1]),
    StartSegment(SPEC),
    StopSegment("old", UNDO_GRACE),
    LockClock(UUID, 900),
    SetMigMode(UUID, True),
)


def one_gpu(*slices: Placement, **changes: object) -> GpuInfo:
    return replace(gpu(UUID, slices), **changes)  # type: ignore[arg-type]


def change_of(*actions: Action) -> Transaction:
    return Transaction((actions,))


@given(situations(), st.integers(0, 9))
def test_a_transaction_can_be_finished_from_wherever_it_has_got_to(
    situation: tuple[Node, tuple[DesiredGpu, ...]], groups: int
) -> None:
    """After any number of groups the rest leads to the same node, and then nothing is left."""
    node, desired = situation
    whole = reconcile(desired, node)
    check(whole, node)
    end = carried_out(whole, node)
    halfway = carried_out(Transaction(whole.groups[:groups]), node)

    rest = outstanding(whole, halfway)

    assert rest.groups == whole.groups[groups:]
    assert carried_out(rest, halfway) == end
    assert outstanding(whole, end) == Transaction()


@given(situations(), st.integers(0, 9))
def test_a_transaction_can_be_undone_from_wherever_it_has_got_to(
    situation: tuple[Node, tuple[DesiredGpu, ...]], groups: int
) -> None:
    """The outstanding part of the way back leads to the node as it was."""
    node, desired = situation
    whole = reconcile(desired, node)
    back = undo(before(whole, node))
    halfway = carried_out(Transaction(whole.groups[:groups]), node)

    undone = carried_out(outstanding(back, halfway), halfway)

    clocks_mhz = {uuid: mhz for uuid, mhz in undone.clocks.held_mhz.items() if mhz}
    assert (undone.gpus, undone.segments) == (node.gpus, node.segments)
    assert clocks_mhz == {uuid: mhz for uuid, mhz in node.clocks.held_mhz.items() if mhz}


def test_undo_frees_before_it_fills_and_starts_when_all_is_there() -> None:
    """Each group finds what it needs: room, the mode, the slices, the clock."""
    then = PriorState(
        (PriorSlice(UUID, HALF[0], existed=True), PriorSlice(UUID, HALF[1], existed=False)),
        {"old": SPEC, "new": None},
        {UUID: 900},
        {UUID: True},
    )

    assert undo(then).groups == (
        (StopSegment("new", UNDO_GRACE),),
        (DestroySlice(UUID, HALF[1]),),
        (SetMigMode(UUID, True),),
        (CreateSlice(UUID, HALF[0]),),
        (LockClock(UUID, 900),),
        (StartSegment(SPEC),),
    )


def test_before_records_each_thing_that_an_action_names() -> None:
    """Places of slices, segments by id, clocks and modes are recorded as they are."""
    old = segment("old", HALF[1])
    node = node_of([one_gpu(HALF[1])], [old], {UUID: 1200})

    assert before(change_of(*EVERY_ACTION), node) == PriorState(
        slices=(PriorSlice(UUID, HALF[0], False), PriorSlice(UUID, HALF[1], True)),
        segments={"s": None, "old": old},
        clocks_mhz={UUID: 1200},
        mig_modes={UUID: True},
    )
    assert before(change_of(LockClock(UUID, 900)), node_of([one_gpu()], [])).clocks_mhz == {UUID: 0}


@pytest.mark.parametrize(
    ("action", "named"),
    [
        (CreateSlice(UUID, HALF[0]), "slice 2g.12gb@0 of GPU-0"),
        (DestroySlice(UUID, HALF[0]), "slice 2g.12gb@0 of GPU-0"),
        (StartSegment(SPEC), "segment s"),
        (StopSegment("s", UNDO_GRACE), "segment s"),
        (LockClock(UUID, 900), "the clock of GPU-0"),
        (SetMigMode(UUID, True), "the MIG mode of GPU-0"),
    ],
)
def test_nothing_is_named_twice(action: Action, named: str) -> None:
    """A transaction says of each thing once how it ends, in whichever group."""
    node = node_of([one_gpu()], [])
    check(Transaction(((action,),)), node)

    with pytest.raises(InvalidArgument, match=rf"^change: names {named} twice$") as refused:
        check(Transaction(((action,), (action,))), node)
    assert refused.value.field == "change"


def test_a_slice_is_named_twice_whether_it_comes_or_goes() -> None:
    """To create a slice and to destroy it are about one thing; those of two GPUs are two."""
    node = node_of([gpu(uuid, ()) for uuid in GPUS], [])
    check(Transaction(tuple((CreateSlice(uuid, HALF[0]),) for uuid in GPUS)), node)

    with pytest.raises(InvalidArgument, match="twice"):
        check(change_of(CreateSlice(UUID, HALF[0]), DestroySlice(UUID, HALF[0])), node)


@pytest.mark.parametrize("action", [each for each in EVERY_ACTION if named_gpus(each)])
def test_a_gpu_that_the_node_lacks_is_refused(action: Action) -> None:
    """Every action that names a GPU is checked."""
    with pytest.raises(NotFound, match=f"no GPU {UUID}") as refused:
        check(change_of(action), node_of([gpu(GPUS[1], ())], []))
    assert refused.value.field == "gpu_uuid"


def test_a_segment_may_be_stopped_by_its_id_alone() -> None:
    """To stop a segment names no GPU."""
    assert [named_gpus(each) for each in EVERY_ACTION] == [
        (UUID,),
        (UUID,),
        (UUID,),
        (),
        (UUID,),
        (UUID,),
    ]
    check(change_of(StopSegment("s", UNDO_GRACE)), node_of([], []))


def test_a_clock_is_one_that_the_gpu_has_or_none() -> None:
    """0 lets the driver choose; what lies outside the GPU's range is refused."""
    node = node_of([one_gpu()], [])
    for allowed_mhz in (0, 900):
        check(change_of(LockClock(UUID, allowed_mhz)), node)
    with pytest.raises(InvalidArgument, match="clock_mhz must be"):
        check(change_of(LockClock(UUID, 1)), node)


@pytest.mark.parametrize("kind", [CreateSlice, DestroySlice])
def test_a_slice_that_another_program_divided_is_left_alone(
    kind: type[CreateSlice | DestroySlice],
) -> None:
    """Only that placement is refused, and only as a slice: work on the GPU continues."""
    node = node_of([one_gpu(divided=(HALF[0],))], [])
    check(change_of(kind(UUID, HALF[1]), StartSegment(SPEC), LockClock(UUID, 900)), node)

    with pytest.raises(FailedPrecondition, match=r"2g\.12gb@0 on GPU-0 is divided") as refused:
        check(change_of(kind(UUID, HALF[0])), node)
    assert refused.value.reason == "SLICE_DIVIDED"


def test_a_segment_is_started_once_it_answers_as_what_was_requested() -> None:
    """One that loads, or another one under its id, is still to be started."""
    start = change_of(StartSegment(SPEC))
    node = node_of([one_gpu(HALF[0])], [SPEC])
    (running,) = node.segments
    loading = replace(node, segments=(replace(running, state=SegmentState.STARTING),))
    another = node_of(node.gpus, [replace(SPEC, batch_size=2)])

    assert outstanding(start, node) == Transaction()
    assert outstanding(start, loading) == start
    assert outstanding(start, another) == start
    assert outstanding(change_of(StopSegment("s", UNDO_GRACE)), loading).actions


def test_a_clock_that_is_held_or_let_go_already_is_done() -> None:
    """No entry means that none is held."""
    node = node_of([one_gpu()], [])
    held = node_of([one_gpu()], [], {UUID: 900})

    for mhz, done, open_ in ((0, node, held), (900, held, node)):
        assert outstanding(change_of(LockClock(UUID, mhz)), done) == Transaction()
        assert outstanding(change_of(LockClock(UUID, mhz)), open_).actions


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("pending", [True, False])
def test_a_mode_is_set_once_it_is_in_force_and_stays(enabled: bool, pending: bool) -> None:
    """One that waits for a reset, or that the next reset would change, is still to be set."""
    node = node_of([one_gpu(mig_enabled=enabled, mig_pending=pending)], [])
    for wanted in (True, False):
        change = change_of(SetMigMode(UUID, wanted))
        done = enabled == pending == wanted
        assert outstanding(change, node) == (Transaction() if done else change)


def test_a_slice_is_gone_only_when_its_gpu_instance_is() -> None:
    """A GPU instance that a crash left is still to be destroyed."""
    destroy = change_of(DestroySlice(UUID, HALF[0]))

    assert outstanding(destroy, node_of([one_gpu()], [])) == Transaction()
    assert outstanding(destroy, node_of([one_gpu(HALF[0])], [])) == destroy
    assert outstanding(destroy, node_of([one_gpu(leftovers=(HALF[0],))], [])) == destroy


def test_what_a_crash_left_is_swept_where_a_slice_is_to_come() -> None:
    """A leftover that overlaps a new slice goes first; others, and those named anyway, do not."""
    node = node_of([one_gpu(leftovers=(HALF[0], HALF[1]))], [])
    create = CreateSlice(UUID, SMALL)

    assert outstanding(change_of(create), node).groups == (
        (DestroySlice(UUID, HALF[1]),),
        (create,),
    )
    both = change_of(create, CreateSlice(UUID, Placement("1g.6gb", 3)))
    assert outstanding(both, node).groups[0] == (DestroySlice(UUID, HALF[1]),), "once"
    again = change_of(CreateSlice(UUID, HALF[1]))
    assert outstanding(again, node) == again, "to create a slice completes its own leftover"
    removal = change_of(DestroySlice(UUID, SMALL), StopSegment("s", UNDO_GRACE))
    assert outstanding(removal, node) == Transaction(), "nothing comes, so nothing is swept"


def test_a_whole_gpu_sweeps_nothing() -> None:
    """Without MIG there are no GPU instances to remove."""
    node = node_of([one_gpu(leftovers=(HALF[0],), mig_enabled=False)], [])
    whole = change_of(CreateSlice(UUID, Placement(WHOLE, 0)))

    assert outstanding(whole, node) == whole
    assert outstanding(whole, node_of([one_gpu(EVERYTHING)], [])) == Transaction()

"""Transactions to a desired state: no action meets a conflict, none touches what may stay."""

from collections import Counter

import pytest
from hypothesis import given

from cinquefoil.gpuagent.v1.records import (
    CreateSlice,
    DesiredGpu,
    DestroySlice,
    LockClock,
    Placement,
    SetMigMode,
    StartSegment,
    StopSegment,
)
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.model import Node, Transaction
from services.gpuagent.core.reconcile import STOP_GRACE, gaps, reconcile
from services.kit.errors import InvalidArgument, NotFound
from tests.support.gpuagent.desired_states import (
    EVERYTHING,
    GPUS,
    HALF,
    carried_out,
    gpu,
    node_of,
    segment,
    situations,
    state_of,
)


@given(situations())
def test_it_arrives_without_conflicts_and_then_has_nothing_to_do(
    situation: tuple[Node, tuple[DesiredGpu, ...]],
) -> None:
    """Slices, segments, modes and clocks end as desired, and a second transaction is empty."""
    node, desired = situation
    after = carried_out(reconcile(desired, node), node)

    specs = [each.spec for each in after.segments]
    for wanted in desired:
        found = next(each for each in after.gpus if each.uuid == wanted.gpu_uuid)
        before = next(each for each in node.gpus if each.uuid == wanted.gpu_uuid)
        mig = before.mig_enabled if wanted.mig_enabled is None else wanted.mig_enabled
        assert found.mig_enabled == mig
        assert {place for place, _ in found.slices} == set(wanted.slices if mig else [EVERYTHING])
        on_it = {spec for spec in specs if spec.gpu_uuid == wanted.gpu_uuid}
        assert on_it == set(wanted.segments)
        if wanted.clock_mhz is not None:
            assert after.clocks.held_mhz.get(wanted.gpu_uuid, 0) == wanted.clock_mhz
    assert reconcile(desired, after) == Transaction()


@given(situations())
def test_what_may_stay_and_what_was_not_named_is_in_no_action(
    situation: tuple[Node, tuple[DesiredGpu, ...]],
) -> None:
    """An action concerns a desired GPU, and changes something there."""
    node, desired = situation
    wanted = {each.gpu_uuid: each for each in desired}
    running = {each.spec.segment_id: each.spec for each in node.segments}
    had = {(each.uuid, place) for each in node.gpus for place, _ in each.slices}
    had_mig = {each.uuid: each.mig_enabled for each in node.gpus}

    for action in reconcile(desired, node).actions:
        match action:
            case CreateSlice(uuid, placement):
                assert (uuid, placement) not in had
            case DestroySlice(uuid, placement):
                assert placement not in wanted[uuid].slices or wanted[uuid].mig_enabled is False
            case StartSegment(spec):
                assert spec.segment_id not in running
            case StopSegment(segment_id):
                spec = running[segment_id]
                assert spec not in wanted[spec.gpu_uuid].segments
            case LockClock(uuid, clock_mhz):
                assert clock_mhz == wanted[uuid].clock_mhz
                assert clock_mhz != node.clocks.held_mhz.get(uuid, 0)
            case SetMigMode(uuid, enabled):
                assert enabled == wanted[uuid].mig_enabled
                assert enabled != had_mig[uuid]


@given(situations())
def test_a_gap_is_a_model_that_is_short_in_between(
    situation: tuple[Node, tuple[DesiredGpu, ...]],
) -> None:
    """A model has a gap where fewer of its segments run at some time than before and after."""
    node, desired = situation
    change = reconcile(desired, node)
    running = {each.spec.segment_id: each.spec.model for each in node.segments}
    over_time = [Counter(running.values())]
    for action in change.actions:
        match action:
            case StopSegment(segment_id):
                del running[segment_id]
            case StartSegment(spec):
                running[spec.segment_id] = spec.model
        over_time.append(Counter(running.values()))

    first, last = over_time[0], over_time[-1]
    short = {m for m in "ab" if min(count[m] for count in over_time) < min(first[m], last[m])}
    assert gaps(change, node) == tuple(sorted(short))


def test_new_segments_start_before_old_ones_stop_where_there_is_room() -> None:
    """The other half of the GPU is free, or holds a slice without a segment."""
    old, new = segment("old", HALF[0]), segment("new", Placement("1g.6gb", 2))
    node = node_of([gpu(GPUS[0], HALF)], [old])

    change = reconcile([state_of(GPUS[0], (new.placement,), (new,))], node)

    assert change.groups == (
        (DestroySlice(GPUS[0], HALF[1]),),
        (CreateSlice(GPUS[0], new.placement),),
        (StartSegment(new),),
        (StopSegment("old", STOP_GRACE),),
        (DestroySlice(GPUS[0], HALF[0]),),
    )
    assert gaps(change, node) == ()


@pytest.mark.parametrize(
    ("here", "there", "placement"),
    [
        (gpu(GPUS[0], HALF), None, HALF[1]),
        (gpu(GPUS[0], HALF[:1]), gpu(GPUS[1], [EVERYTHING], mig=False), EVERYTHING),
        (gpu(GPUS[0], HALF[:1]), gpu(GPUS[1], HALF[:1]), HALF[0]),
    ],
    ids=["a free slice stays", "a whole GPU is free", "a slice of another GPU is free"],
)
def test_new_segments_start_first_where_nothing_has_to_change(
    here: GpuInfo, there: GpuInfo | None, placement: Placement
) -> None:
    """A ready slice takes the new segment before the old one stops, so no model has a gap."""
    node = node_of([here, there] if there else [here], [segment("old", HALF[0])])
    new = segment("new", placement, there.uuid if there else here.uuid)
    slices = tuple(place for place, _ in here.slices)
    desired = [state_of(here.uuid, slices, () if there else (new,))]
    if there:
        desired.append(state_of(there.uuid, (HALF[0],), (new,)))

    change = reconcile(desired, node)

    assert change.groups == ((StartSegment(new),), (StopSegment("old", STOP_GRACE),))
    assert gaps(change, node) == ()


def test_slices_are_checked_only_where_they_will_be_and_the_mode_knows_them() -> None:
    """Without MIG, or before it is on, an impossible layout is no error: nothing is made of it."""
    overlapping = (HALF[0], Placement("1g.6gb", 1))
    plain, cut = gpu(GPUS[0], [EVERYTHING], mig=False), gpu(GPUS[1], HALF)
    node = node_of([plain, cut], [])

    off = [state_of(each.uuid, overlapping, mig_enabled=False) for each in (plain, cut)]
    assert CreateSlice not in {type(each) for each in reconcile(off, node).actions}
    reconcile([state_of(GPUS[0], overlapping, mig_enabled=True)], node)


def test_a_model_that_must_stop_first_has_a_gap_and_others_have_none() -> None:
    """A smaller segment on the same slice comes after the old one; a model that leaves is none."""
    specs = [segment("a", HALF[0], model="a"), segment("b", HALF[1], model="b")]
    node = node_of([gpu(GPUS[0], HALF)], specs)
    small = segment("a-small", Placement("1g.6gb", 0), model="a")

    change = reconcile([state_of(GPUS[0], (small.placement, HALF[1]), (small, specs[1]))], node)
    leaving = reconcile([state_of(GPUS[0], HALF, (specs[1],))], node)

    assert gaps(change, node) == ("a",)
    assert gaps(leaving, node) == (), "capacity that leaves for good is no gap"


def test_clocks_rise_first_and_fall_last() -> None:
    """Work that starts finds the higher clock; work that stops keeps it to its end."""
    node = node_of([gpu(GPUS[0], HALF), gpu(GPUS[1], HALF)], [], {GPUS[0]: 900, GPUS[1]: 1200})
    desired = [state_of(GPUS[0], HALF[:1], (), None, 0), state_of(GPUS[1], HALF, (), None, 900)]

    groups = reconcile(desired, node).groups

    assert groups[0][0] == LockClock(GPUS[0], 0), "the driver's own clock is the highest"
    assert groups[-1] == (LockClock(GPUS[1], 900),)


def test_a_clock_that_is_not_held_and_should_not_be_is_left_alone() -> None:
    """0 desired and none held are the same."""
    node = node_of([gpu(GPUS[0], HALF)], [])
    assert reconcile([state_of(GPUS[0], HALF, clock_mhz=0)], node) == Transaction()


def test_another_mig_mode_empties_the_gpu_first() -> None:
    """The driver switches the mode of an idle GPU without slices only."""
    spec, whole = segment("old", HALF[0]), segment("new", Placement("whole", 0))
    node = node_of([gpu(GPUS[0], HALF)], [spec])

    change = reconcile([state_of(GPUS[0], (), (whole,), mig_enabled=False)], node)

    assert [type(each) for each in change.actions] == [
        DestroySlice,
        StopSegment,
        DestroySlice,
        SetMigMode,
        StartSegment,
    ]


@pytest.mark.parametrize(
    ("desired", "field", "says"),
    [
        ([state_of("GPU-0"), state_of("GPU-0")], "gpu_uuid", "GPU-0 is named twice"),
        ([state_of("GPU-0", (HALF[0], Placement("1g.6gb", 1)))], "slices", "GPU-0: .* overlaps"),
        ([state_of("GPU-0", (Placement("9g", 0),))], "slices", "no profile '9g'"),
        (
            [state_of("GPU-0", HALF, (segment("x", Placement("1g.6gb", 0)),))],
            "segments.placement",
            "x needs 1g.6gb@0, which is not among the slices of GPU-0: 2g.12gb@0, 2g.12gb@2",
        ),
        (
            [state_of("GPU-0", (), (segment("x", HALF[0]),))],
            "segments.placement",
            "slices of GPU-0: none$",
        ),
        (
            [state_of("GPU-0", HALF, (segment("x", HALF[0]), segment("y", HALF[0])))],
            "segments.placement",
            "2g.12gb@0 of GPU-0 is named twice",
        ),
        (
            [state_of("GPU-0", HALF, (segment("x", HALF[0]), segment("x", HALF[1])))],
            "segments",
            "x is named twice",
        ),
        (
            [state_of("GPU-0", HALF, (segment("x", HALF[0], "GPU-1"),))],
            "segments.gpu_uuid",
            "x is listed under GPU-0, but says GPU-1",
        ),
        (
            [state_of("GPU-0", HALF, (segment("old", HALF[1]),))],
            "segments.segment_id",
            "old runs already",
        ),
    ],
)
def test_what_cannot_be_is_reported(desired: list[DesiredGpu], field: str, says: str) -> None:
    """An impossible state is refused by the field that is wrong."""
    node = node_of([gpu("GPU-0", HALF)], [segment("old", HALF[0])])
    with pytest.raises(InvalidArgument, match=says) as refused:
        reconcile(desired, node)
    assert refused.value.field == f"gpus.{field}"
    assert refused.value.message.startswith("gpus.")


def test_a_gpu_that_the_node_lacks_is_not_found() -> None:
    """The error names the GPU and the field."""
    with pytest.raises(NotFound, match="GPU-9") as refused:
        reconcile([state_of("GPU-9")], node_of([], []))
    assert refused.value.field == "gpus.gpu_uuid"

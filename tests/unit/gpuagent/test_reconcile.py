"""The way from the present to the desired state: nothing in the way, nothing kept is touched."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import (
    CreateSlice,
    DesiredGpu,
    DestroySlice,
    LockClock,
    Placement,
    SegmentSpec,
    SegmentState,
    SetMigMode,
    StartSegment,
    StopSegment,
)
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.model import ClockState, Node, Segment, Transaction
from services.gpuagent.core.reconcile import STOP_GRACE, gaps, reconcile
from services.kit.errors import InvalidArgument, NotFound
from services.kit.hardware import gpu_types
from tests.support.layouts import layouts

MODEL = gpu_types.load("a30")
LAYOUTS = sorted(
    layout
    for layout in layouts(MODEL.geometry)
    if not any("+" in placement.profile for placement in layout)
)
GPUS = ("GPU-0", "GPU-1")
HALF = (Placement("2g.12gb", 0), Placement("2g.12gb", 2))


def segment(name: str, placement: Placement, gpu: str = GPUS[0], model: str = "m") -> SegmentSpec:
    return SegmentSpec(name, model, "v", 1, 1, gpu, placement)


def gpu(uuid: str, slices: Sequence[Placement]) -> GpuInfo:
    return GpuInfo(uuid, 0, MODEL, True, tuple((each, f"MIG-{each}") for each in slices), 1440)


def node_of(
    gpus: Sequence[GpuInfo], specs: Sequence[SegmentSpec], held_mhz: dict[str, int] | None = None
) -> Node:
    segments = tuple(Segment(spec, SegmentState.READY, (), 0) for spec in specs)
    return Node("n", "Z", True, tuple(gpus), segments, ClockState(True, held_mhz or {}))


def carried_out(change: Transaction, node: Node) -> Node:
    """Return the node after a change; fail where an action of it finds somebody in the way."""
    slices = {each.uuid: [placement for placement, _ in each.slices] for each in node.gpus}
    running = {each.spec.segment_id: each.spec for each in node.segments}
    held_mhz = dict(node.clocks.held_mhz)
    for group in change.groups:
        for action in group:
            occupied = {(spec.gpu_uuid, spec.placement) for spec in running.values()}
            match action:
                case CreateSlice(uuid, placement):
                    slices[uuid].append(placement)
                    assert not MODEL.geometry.problem(slices[uuid])
                case DestroySlice(uuid, placement):
                    assert (uuid, placement) not in occupied
                    slices[uuid].remove(placement)
                case StartSegment(spec):
                    assert spec.placement in slices[spec.gpu_uuid]
                    assert (spec.gpu_uuid, spec.placement) not in occupied
                    running[spec.segment_id] = spec
                case StopSegment(segment_id):
                    del running[segment_id]
                case LockClock(uuid, clock_mhz):
                    held_mhz[uuid] = clock_mhz
                case SetMigMode():
                    pytest.fail("no other MIG mode is wanted")
    gpus = [gpu(each.uuid, sorted(slices[each.uuid])) for each in node.gpus]
    return node_of(gpus, sorted(running.values(), key=lambda spec: spec.segment_id), held_mhz)


def wanted(  # in the order of the tests, of which few say the last two
    gpu_uuid: str,
    slices: tuple[Placement, ...] = (),
    segments: tuple[SegmentSpec, ...] = (),
    mig_enabled: bool | None = None,
    clock_mhz: int | None = None,
) -> DesiredGpu:
    """Return the desired state of a GPU."""
    return DesiredGpu(gpu_uuid, mig_enabled, slices, segments, clock_mhz)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Node, tuple[DesiredGpu, ...]]:
    """A node, and a state for some of its GPUs that keeps some of what is."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    gpus, specs, desired = [], [], []
    for uuid in GPUS:
        now, then = rng.choice(LAYOUTS), rng.choice(LAYOUTS)
        here = [
            segment(f"old-{uuid}-{place.start}", place, uuid, rng.choice("ab"))
            for place in now
            if rng.random() < 0.7
        ]
        gpus.append(gpu(uuid, sorted(now)))
        specs.extend(here)
        kept = [spec for spec in here if spec.placement in then and rng.random() < 0.5]
        taken = {spec.placement for spec in kept}
        new = [
            segment(f"new-{uuid}-{place.start}", place, uuid, rng.choice("ab"))
            for place in then
            if place not in taken and rng.random() < 0.7
        ]
        if rng.random() < 0.8:
            clock_mhz = rng.choice([None, 0, 900, 1200])
            desired.append(wanted(uuid, then, (*kept, *new), None, clock_mhz))
    held_mhz = {uuid: mhz for uuid in GPUS if (mhz := rng.choice([0, 900, 1200]))}
    specs.sort(key=lambda spec: spec.segment_id)
    return node_of(gpus, specs, held_mhz), tuple(desired)


@given(situations())
def test_it_arrives_without_conflicts_and_then_has_nothing_to_do(
    situation: tuple[Node, tuple[DesiredGpu, ...]],
) -> None:
    node, desired = situation
    after = carried_out(reconcile(desired, node), node)

    specs = [each.spec for each in after.segments]
    for wanted in desired:
        found = next(each for each in after.gpus if each.uuid == wanted.gpu_uuid)
        assert {place for place, _ in found.slices} == set(wanted.slices)
        on_it = {spec for spec in specs if spec.gpu_uuid == wanted.gpu_uuid}
        assert on_it == set(wanted.segments)
        if wanted.clock_mhz is not None:
            assert after.clocks.held_mhz.get(wanted.gpu_uuid, 0) == wanted.clock_mhz
    assert reconcile(desired, after) == Transaction()


@given(situations())
def test_what_may_stay_and_what_was_not_named_is_in_no_action(
    situation: tuple[Node, tuple[DesiredGpu, ...]],
) -> None:
    node, desired = situation
    wanted = {each.gpu_uuid: each for each in desired}
    running = {each.spec.segment_id: each.spec for each in node.segments}
    had = {(each.uuid, place) for each in node.gpus for place, _ in each.slices}

    for action in reconcile(desired, node).actions:
        match action:
            case CreateSlice(uuid, placement):
                assert (uuid, placement) not in had
            case DestroySlice(uuid, placement):
                assert placement not in wanted[uuid].slices
            case StartSegment(spec):
                assert spec.segment_id not in running
            case StopSegment(segment_id):
                spec = running[segment_id]
                assert spec not in wanted[spec.gpu_uuid].segments
            case LockClock(uuid):
                assert uuid in wanted


def test_new_segments_start_before_old_ones_stop_where_there_is_room() -> None:
    """The other half of the GPU is free, or holds an unused slice."""
    old, new = segment("old", HALF[0]), segment("new", Placement("1g.6gb", 2))
    node = node_of([gpu(GPUS[0], HALF)], [old])

    change = reconcile([wanted(GPUS[0], (new.placement,), (new,))], node)

    assert change.groups == (
        (DestroySlice(GPUS[0], HALF[1]),),
        (CreateSlice(GPUS[0], new.placement),),
        (StartSegment(new),),
        (StopSegment("old", STOP_GRACE),),
        (DestroySlice(GPUS[0], HALF[0]),),
    )
    assert gaps(change, node) == ()


def test_a_model_that_must_stop_first_has_a_gap_and_others_have_none() -> None:
    specs = [segment("a", HALF[0], model="a"), segment("b", HALF[1], model="b")]
    node = node_of([gpu(GPUS[0], HALF)], specs)
    small = segment("a-small", Placement("1g.6gb", 0), model="a")

    change = reconcile([wanted(GPUS[0], (small.placement, HALF[1]), (small, specs[1]))], node)
    leaving = reconcile([wanted(GPUS[0], HALF, (specs[1],))], node)

    assert gaps(change, node) == ("a",)
    assert gaps(leaving, node) == (), "capacity that no target wants back is not a gap"


def test_clocks_rise_first_and_fall_last() -> None:
    node = node_of([gpu(GPUS[0], HALF), gpu(GPUS[1], HALF)], [], {GPUS[0]: 900, GPUS[1]: 1200})
    desired = [wanted(GPUS[0], HALF[:1], (), None, 0), wanted(GPUS[1], HALF, (), None, 900)]

    groups = reconcile(desired, node).groups

    assert groups[0][0] == LockClock(GPUS[0], 0), "the driver's own clock is the highest"
    assert groups[-1] == (LockClock(GPUS[1], 900),)


def test_another_mig_mode_empties_the_gpu_first() -> None:
    spec, whole = segment("old", HALF[0]), segment("new", Placement("whole", 0))
    node = node_of([gpu(GPUS[0], HALF)], [spec])

    change = reconcile([wanted(GPUS[0], (), (whole,), mig_enabled=False)], node)

    assert [type(each) for each in change.actions] == [
        DestroySlice,
        StopSegment,
        DestroySlice,
        SetMigMode,
        StartSegment,
    ]


@pytest.mark.parametrize(
    ("desired", "says"),
    [
        ([wanted("GPU-0"), wanted("GPU-0")], "GPU-0 is named twice"),
        ([wanted("GPU-0", (HALF[0], Placement("1g.6gb", 1)))], "overlaps"),
        ([wanted("GPU-0", (Placement("9g", 0),))], "no profile '9g'"),
        ([wanted("GPU-0", HALF, (segment("x", Placement("1g.6gb", 0)),))], "not among"),
        ([wanted("GPU-0", HALF, (segment("x", HALF[0]), segment("y", HALF[0])))], "twice"),
        ([wanted("GPU-0", HALF, (segment("x", HALF[0]), segment("x", HALF[1])))], "twice"),
        ([wanted("GPU-0", HALF, (segment("x", HALF[0], "GPU-1"),))], "says GPU-1"),
        ([wanted("GPU-0", HALF, (segment("old", HALF[1]),))], "is another"),
    ],
)
def test_what_cannot_be_is_reported(desired: list[DesiredGpu], says: str) -> None:
    node = node_of([gpu("GPU-0", HALF)], [segment("old", HALF[0])])
    with pytest.raises(InvalidArgument, match=says):
        reconcile(desired, node)


def test_a_gpu_that_the_node_lacks_is_not_found() -> None:
    with pytest.raises(NotFound, match="GPU-9"):
        reconcile([wanted("GPU-9")], node_of([], []))

"""Nodes in memory, states that somebody may desire of them, and what actions make of them."""

import random
from collections.abc import Sequence

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
from services.kit.hardware import gpu_types
from services.kit.mig import WHOLE
from tests.support.layouts import layouts

MODEL = gpu_types.load("a30")
LAYOUTS = sorted(
    layout
    for layout in layouts(MODEL.geometry)
    if not any("+" in placement.profile for placement in layout)
)
GPUS = ("GPU-0", "GPU-1")
HALF = (Placement("2g.12gb", 0), Placement("2g.12gb", 2))
EVERYTHING = Placement(WHOLE, 0)


def segment(name: str, placement: Placement, gpu: str = GPUS[0], model: str = "m") -> SegmentSpec:
    """A segment of one process."""
    return SegmentSpec(name, model, "v", 1, 1, gpu, placement)


def gpu(uuid: str, slices: Sequence[Placement], mig: bool = True) -> GpuInfo:
    """An A30 with some slices."""
    made = tuple((each, f"MIG-{each}") for each in slices)
    return GpuInfo(uuid, 0, MODEL, mig, made, 1440, mig_pending=mig)


def node_of(
    gpus: Sequence[GpuInfo], specs: Sequence[SegmentSpec], held_mhz: dict[str, int] | None = None
) -> Node:
    """A node whose segments answer."""
    segments = tuple(Segment(spec, SegmentState.READY, (), 0) for spec in specs)
    return Node("n", "Z", True, tuple(gpus), segments, ClockState(True, held_mhz or {}))


def state_of(
    gpu_uuid: str,
    slices: tuple[Placement, ...] = (),
    segments: tuple[SegmentSpec, ...] = (),
    mig_enabled: bool | None = None,
    clock_mhz: int | None = None,
) -> DesiredGpu:
    """A desired state, by what most tests name of it first."""
    return DesiredGpu(gpu_uuid, mig_enabled, slices, segments, clock_mhz)


def carried_out(change: Transaction, node: Node) -> Node:
    """Return the node after a change; fail where something stands in an action's way."""
    slices = {each.uuid: [placement for placement, _ in each.slices] for each in node.gpus}
    modes = {each.uuid: each.mig_enabled for each in node.gpus}
    running = {each.spec.segment_id: each.spec for each in node.segments}
    held_mhz = dict(node.clocks.held_mhz)
    for group in change.groups:
        for action in group:
            occupied = {(spec.gpu_uuid, spec.placement) for spec in running.values()}
            match action:
                case CreateSlice(uuid, placement):
                    assert modes[uuid]
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
                case SetMigMode(uuid, enabled):
                    assert slices[uuid] == ([EVERYTHING] if enabled else [])
                    assert uuid not in {busy for busy, _ in occupied}
                    modes[uuid] = enabled
                    slices[uuid] = [] if enabled else [EVERYTHING]
    gpus = [gpu(each.uuid, sorted(slices[each.uuid]), modes[each.uuid]) for each in node.gpus]
    return node_of(gpus, sorted(running.values(), key=lambda spec: spec.segment_id), held_mhz)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Node, tuple[DesiredGpu, ...]]:
    """A node, and a state for some of its GPUs that keeps some of what is."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    gpus, specs, desired = [], [], []
    for uuid in GPUS:
        had_mig, wanted_mig = rng.random() < 0.7, rng.choice([None, None, True, False])
        mig = had_mig if wanted_mig is None else wanted_mig
        now = rng.choice(LAYOUTS) if had_mig else (EVERYTHING,)
        then = rng.choice(LAYOUTS) if mig else (EVERYTHING,)
        here = [
            segment(f"old-{uuid}-{place.start}", place, uuid, rng.choice("ab"))
            for place in now
            if rng.random() < 0.7
        ]
        gpus.append(gpu(uuid, sorted(now), had_mig))
        specs.extend(here)
        kept = [spec for spec in here if spec.placement in then and rng.random() < 0.5]
        taken = {spec.placement for spec in kept}
        new = [
            segment(f"new-{uuid}-{place.start}", place, uuid, rng.choice("ab"))
            for place in then
            if place not in taken and rng.random() < 0.7
        ]
        if rng.random() < 0.8:
            slices = then if mig else rng.choice(LAYOUTS)  # ignored without MIG
            clock_mhz = rng.choice([None, 0, 900, 1200])
            desired.append(state_of(uuid, slices, (*kept, *new), wanted_mig, clock_mhz))
    held_mhz = {uuid: mhz for uuid in GPUS if (mhz := rng.choice([0, 900, 1200]))}
    specs.sort(key=lambda spec: spec.segment_id)
    return node_of(gpus, specs, held_mhz), tuple(desired)

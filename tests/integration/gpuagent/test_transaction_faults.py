"""Whatever fails, and wherever the agent dies: the node is as desired, or as it was before."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

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
    SetMigMode,
    StartSegment,
    StopSegment,
)
from services.gpuagent.core.model import Node, Transaction
from services.gpuagent.core.reconcile import reconcile
from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.kit.hardware import gpu_types
from services.kit.mig import WHOLE
from tests.support.examples import examples
from tests.support.gpuagent.nvml_faults import InjectedFault
from tests.support.gpuagent.transactions import CHANGING, TYPES, Agent, State, World, live, machine
from tests.support.layouts import layouts

LAYOUTS = {
    # Media extensions are not offered for inference.
    name: sorted(
        layout
        for layout in layouts(gpu_types.load(name).geometry)
        if not any("+" in placement.profile for placement in layout)
    )
    for name in TYPES
}
CODES = (Code.IN_USE, Code.INSUFFICIENT_RESOURCES, Code.UNKNOWN, Code.NO_PERMISSION)
MOST_FAULTS = 4  # fewer than the tries of an action that takes something back


@dataclass(frozen=True)
class Ordeal:
    """One plan, and what goes wrong while it is carried out.

    Attributes:
        seed: Draws the plan from what runs.
        scrambled: The change's groups are in an arbitrary order.
        faults: Calls of NVML that fail.
        failing_starts: Workers that end as soon as they start.
        death: The agent is killed at this effect.
        second_death: So is the next one, while it repairs.
    """

    seed: int
    scrambled: bool
    faults: tuple[InjectedFault, ...]
    failing_starts: int
    death: int | None
    second_death: int | None


orders = st.builds(
    InjectedFault,
    code=st.sampled_from(CODES),
    symbols=st.sampled_from(sorted(CHANGING)).map(lambda symbol: frozenset({symbol})),
    skip=st.integers(0, 6),
    after=st.booleans(),
)
ordeals = st.builds(
    Ordeal,
    seed=st.integers(0, 2**32),
    scrambled=st.booleans(),
    faults=st.lists(orders, max_size=MOST_FAULTS).map(tuple),
    failing_starts=st.sampled_from([0, 0, 0, 1, 2]),
    death=st.none() | st.integers(0, 60),
    second_death=st.none() | st.integers(0, 30),
)


def plan(rng: random.Random, node: Node, world: World) -> list[DesiredGpu]:
    """Draw a desired state that keeps a part of what is."""
    desired = []
    for gpu in node.gpus:
        if rng.random() < 0.2:
            continue
        mig = rng.random() < 0.9
        wanted = rng.choice(LAYOUTS[gpu.model.name]) if mig else ()
        if rng.random() < 0.5:  # from one layout to a near one, as planners do
            kept = [placement for placement, _ in gpu.slices if placement.profile != WHOLE]
            wanted = _merged(gpu.model.name, kept, wanted, rng) if mig else ()
        places = wanted if mig else (Placement(WHOLE, 0),)
        running = {each.spec.placement: each.spec for each in node.segments
                   if each.spec.gpu_uuid == gpu.uuid}  # fmt: skip
        segments = []
        for placement in places:
            if placement in running and rng.random() < 0.7:
                segments.append(running[placement])
            elif rng.random() < 0.6:
                segments.append(_segment(world, gpu.uuid, placement, rng))
        clock_mhz = rng.choice([None, 0, 900, 1200])
        desired.append(DesiredGpu(gpu.uuid, mig, wanted, tuple(segments), clock_mhz))
    return desired


def _merged(
    gpu_type: str, kept: Sequence[Placement], wanted: Sequence[Placement], rng: random.Random
) -> tuple[Placement, ...]:
    geometry = gpu_types.load(gpu_type).geometry
    found = [each for each in kept if rng.random() < 0.7]
    for placement in wanted:
        if not geometry.problem([*found, placement]):
            found.append(placement)
    return tuple(sorted(found, key=lambda each: each.start))


def _segment(world: World, uuid: str, placement: Placement, rng: random.Random) -> SegmentSpec:
    return SegmentSpec(world.segment_id(), "m", "v", 1, rng.choice([1, 1, 2]), uuid, placement)


def scrambled(rng: random.Random, change: Transaction) -> Transaction:
    """Return the same actions in any order, in any groups."""
    actions = list(change.actions)
    rng.shuffle(actions)
    groups: list[list[object]] = [[]]
    for action in actions:
        if rng.random() < 0.5:
            groups.append([])
        groups[-1].append(action)
    return Transaction(tuple(tuple(group) for group in groups if group))  # type: ignore[arg-type]


def after(change: Transaction, before: State, world: World) -> State:
    """Return the state that a change results in."""
    slices, segments = set(before.slices), set(before.segments)
    mig, clocks_mhz = dict(before.mig), dict(before.clocks_mhz)
    tables = dict(zip(world.library.gpu_uuids, map(gpu_types.load, TYPES), strict=True))
    for action in change.actions:
        match action:
            case CreateSlice(uuid, placement):
                slices.add((uuid, placement))
            case DestroySlice(uuid, placement):
                slices.discard((uuid, placement))
            case StartSegment(spec):
                segments.add(spec)
            case StopSegment(segment_id):
                segments = {each for each in segments if each.segment_id != segment_id}
            case LockClock(uuid, clock_mhz):
                known = tables[uuid].clocks_mhz
                clocks_mhz[uuid] = min(
                    known, key=lambda each: abs(each - (clock_mhz or max(known)))
                )
            case SetMigMode(uuid, enabled):
                mig[uuid] = (enabled, enabled)
                whole = (uuid, Placement(WHOLE, 0))
                slices = slices - {whole} if enabled else slices | {whole}
    return State(mig, frozenset(slices), frozenset(segments), clocks_mhz)


async def check(agent: Agent, world: World, allowed: Sequence[State]) -> State:
    """Return the state; fail unless it is one of `allowed`, with no worker too many or too few."""
    state = await agent.state()
    assert state in allowed
    workers = {f"{s.segment_id}.{n}" for s in state.segments for n in range(s.processes)}
    assert set(world.table.pids()) == workers
    specs = {path.stem for path in (world.folder / "workers").glob("*.json")}
    assert specs == workers
    return state


def untouched(change: Transaction, pids: dict[str, int], state: State) -> dict[str, int]:
    """Return the workers that no action names and that must be the same processes for ever."""
    named = {
        action.spec.segment_id if isinstance(action, StartSegment) else action.segment_id
        for action in change.actions
        if isinstance(action, StartSegment | StopSegment)
    }
    kept = {each.segment_id for each in state.segments} - named
    return {name: pid for name, pid in pids.items() if name.rsplit(".", 1)[0] in kept}


async def endure(world: World, ordeal: Ordeal) -> None:
    """Carry one plan out against all odds, and look at what came of it."""
    found: list[State] = []
    kept: dict[str, int] = {}

    async def change(agent: Agent) -> None:
        rng = random.Random(ordeal.seed)
        node, before = await agent.node(), await agent.state()
        wanted = reconcile(plan(rng, node, world), node)
        if ordeal.scrambled:
            wanted = scrambled(rng, wanted)
        found.extend((before, after(wanted, before, world)))
        kept.update(untouched(wanted, world.table.pids(), before))
        for fault in ordeal.faults:
            world.library.inject(replace(fault))
        world.table.failing_starts = ordeal.failing_starts
        world.death.at(ordeal.death)
        outcome = await agent.do(wanted)
        calm(world)
        assert not outcome.not_restored
        state = await check(agent, world, found[:1] if outcome.error else found[1:])
        if outcome.error is None:
            await again(agent, world, wanted, state)

    async def look(agent: Agent) -> None:
        await check(agent, world, found)
        assert kept.items() <= world.table.pids().items()

    killed = await live(world, change)
    calm(world)
    if killed and ordeal.second_death is not None:
        world.death.at(ordeal.second_death)
        await live(world, look)
    calm(world)
    assert not await live(world, look)


async def again(agent: Agent, world: World, change: Transaction, state: State) -> None:
    """The same change twice does nothing."""
    pids = world.table.pids()
    world.death.at(None)
    outcome = await agent.do(change)
    assert outcome.error is None
    assert world.death.effects == 0, "something was written, called or started"
    assert await agent.state() == state
    assert world.table.pids() == pids


def calm(world: World) -> None:
    """End what was ordered to go wrong."""
    world.death.at(None)
    world.table.failing_starts = 0
    world.library.clear_faults()


@pytest.mark.may_block  # thousands of small files are written and read
@examples(0.5)
@given(st.lists(ordeals, min_size=1, max_size=6))
def test_after_any_sequence_of_plans_and_faults_the_node_is_as_desired_or_as_before(
    sequence: list[Ordeal],
) -> None:
    """Workers that a plan does not name are the same processes; nothing is left over."""

    async def run(world: World) -> None:
        await live(world, enable_mig)
        for ordeal in sequence:
            await endure(world, ordeal)

    with TemporaryDirectory() as folder, machine(Path(folder)) as world:
        asyncio.run(run(world))


async def enable_mig(agent: Agent) -> None:
    """Switch MIG mode on everywhere, as an agent does that may."""
    node = await agent.node()
    outcome = await agent.do(Transaction((tuple(SetMigMode(gpu.uuid, True) for gpu in node.gpus),)))
    assert outcome.error is None

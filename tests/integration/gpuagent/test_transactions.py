"""Changes on simulated hardware, one at a time."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pynvml
import pytest

from cinquefoil.gpuagent.v1.records import (
    CreateSlice,
    DestroySlice,
    LockClock,
    Placement,
    SegmentSpec,
    SetMigMode,
    StartSegment,
    StopSegment,
)
from services.gpuagent.core.model import Transaction
from services.gpuagent.core.transaction_rules import UNDO_GRACE, PriorSlice, PriorState, undo
from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.gpuagent.devices.nvml import reading
from services.gpuagent.supervision.journal import Journal
from services.kit.hardware.gpu_types import load
from services.kit.state_file import not_written
from tests.support.gpuagent.nvml_faults import InjectedFault
from tests.support.gpuagent.transactions import Agent, World, live, machine

LEFT, RIGHT = Placement("2g.12gb", 0), Placement("2g.12gb", 2)
SMALL = Placement("1g.6gb", 2)
Body = Callable[[Agent, World, str], Awaitable[None]]


def on_one_gpu(folder: Path, body: Body, *, mig: bool = True, **options: object) -> None:
    """Run `body` with an agent of one A30."""

    async def run() -> None:
        with machine(folder, ("a30",), **options) as world:
            (uuid,) = world.library.gpu_uuids

            async def act(agent: Agent) -> None:
                if mig:
                    outcome = await agent.do(Transaction(((SetMigMode(uuid, True),),)))
                    assert outcome.error is None
                await body(agent, world, uuid)

            assert not await live(world, act)

    asyncio.run(run())


async def until(true: Callable[[], bool]) -> None:
    """Wait until something is true that has no event."""
    while not true():  # noqa: ASYNC110 - threads write what it looks at
        await asyncio.sleep(0.001)


def test_undo_frees_before_it_fills_and_starts_when_all_is_there() -> None:
    spec = SegmentSpec("old", "m", "v", 1, 1, "GPU", LEFT)
    then = PriorState(
        (PriorSlice("GPU", LEFT, existed=True), PriorSlice("GPU", RIGHT, existed=False)),
        {"old": spec, "new": None},
        {"GPU": 900},
        {"GPU": True},
    )

    assert undo(then).groups == (
        (StopSegment("new", UNDO_GRACE),),
        (DestroySlice("GPU", RIGHT),),
        (SetMigMode("GPU", True),),
        (CreateSlice("GPU", LEFT),),
        (LockClock("GPU", 900),),
        (StartSegment(spec),),
    )


def test_a_driver_that_lets_go_late_is_waited_for(tmp_path: Path) -> None:
    """IN_USE right after a process ended is tried again, and is an error only if it stays."""

    async def body(agent: Agent, world: World, uuid: str) -> None:
        await agent.do(Transaction(((CreateSlice(uuid, LEFT),),)))
        destroy = frozenset({"nvmlComputeInstanceDestroy"})

        world.library.inject(InjectedFault(Code.IN_USE, destroy, times=3))
        late = await agent.do(Transaction(((DestroySlice(uuid, LEFT),),)))
        await agent.do(Transaction(((CreateSlice(uuid, LEFT),),)))
        world.library.inject(InjectedFault(Code.IN_USE, destroy, times=None))
        never = await agent.do(Transaction(((DestroySlice(uuid, LEFT),),)))

        assert late.error is None
        assert never.error is not None
        assert never.error.reason == "NVML_IN_USE"

    on_one_gpu(tmp_path, body)


def test_a_mode_that_would_come_with_the_next_reset_is_taken_back(tmp_path: Path) -> None:
    """In a virtual machine the mode stays pending: the change fails, and nothing is pending."""

    async def body(agent: Agent, _: World, uuid: str) -> None:
        outcome = await agent.do(
            Transaction(((SetMigMode(uuid, True),), (CreateSlice(uuid, LEFT),)))
        )
        (gpu,) = (await agent.node()).gpus

        assert outcome.error is not None
        assert not outcome.not_restored
        assert (gpu.mig_enabled, gpu.mig_pending) == (False, False)

    on_one_gpu(tmp_path, body, mig=False, passthrough=True)


def test_mig_mode_changes_on_an_idle_gpu_only(tmp_path: Path) -> None:
    async def body(agent: Agent, _: World, uuid: str) -> None:
        await agent.do(Transaction(((CreateSlice(uuid, LEFT),),)))
        outcome = await agent.do(Transaction(((SetMigMode(uuid, False),),)))

        assert outcome.error is not None
        assert outcome.error.reason == "GPU_NOT_IDLE"
        assert "2g.12gb@0" in outcome.error.message

    on_one_gpu(tmp_path, body)


def test_an_empty_instance_in_the_way_goes_and_a_divided_one_is_somebody_elses(
    tmp_path: Path,
) -> None:
    """A crash between creating a GPU instance and its compute instance leaves an empty one."""

    async def body(agent: Agent, world: World, uuid: str) -> None:
        world.library.inject(
            InjectedFault.nth("nvmlGpuInstanceCreateComputeInstance", Code.UNKNOWN)
        )
        world.library.inject(
            InjectedFault(Code.UNKNOWN, frozenset({"nvmlGpuInstanceDestroy"}), times=None)
        )
        failed = await agent.do(Transaction(((CreateSlice(uuid, RIGHT),),)))
        assert failed.not_restored
        assert "destroy 2g.12gb@2" in failed.not_restored[0]
        assert (await agent.node()).gpus[0].leftovers == (RIGHT,)
        world.library.clear_faults()

        swept = await agent.do(Transaction(((CreateSlice(uuid, SMALL),),)))
        assert swept.error is None
        assert [place for place, _ in (await agent.node()).gpus[0].slices] == [SMALL]

        await agent.do(Transaction(((CreateSlice(uuid, LEFT),),)))
        _divide(uuid, LEFT)
        for action in (DestroySlice(uuid, LEFT), CreateSlice(uuid, LEFT)):
            refused = await agent.do(Transaction(((action,),)))
            assert refused.error is not None
            assert refused.error.reason == "SLICE_DIVIDED"
        assert (await agent.node()).gpus[0].divided == (LEFT,)

    on_one_gpu(tmp_path, body)


def _divide(uuid: str, placement: Placement) -> None:
    """Cut a slice in two, as `nvidia-smi mig -cci` does."""
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    found = reading.instances(device, load("a30").geometry)
    instance = next(entry.handle for entry in found if entry.placement == placement)
    for compute in reading.compute_instances(instance):
        pynvml.nvmlComputeInstanceDestroy(compute)
    for _ in range(2):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)


def test_a_disk_that_takes_no_journal_stops_the_change_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(agent: Agent, _: World, uuid: str) -> None:
        def full(_then: PriorState) -> None:
            raise not_written(tmp_path, OSError(28, "No space left on device"))

        monkeypatch.setattr(agent.transactions.journal, "save", full)
        outcome = await agent.do(Transaction(((CreateSlice(uuid, LEFT),),)))

        assert outcome.error is not None
        assert "nothing was changed" in outcome.error.message
        assert not (await agent.node()).gpus[0].slices

    on_one_gpu(tmp_path, body)


def test_a_caller_that_goes_away_takes_its_change_back(tmp_path: Path) -> None:
    """The group in progress ends, the rest never begins, and what was done is undone."""

    async def body(agent: Agent, world: World, uuid: str) -> None:
        world.table.loading = asyncio.Event()
        spec = SegmentSpec("s", "m", "v", 1, 1, uuid, LEFT)
        change = Transaction(
            ((CreateSlice(uuid, LEFT),), (StartSegment(spec),), (CreateSlice(uuid, RIGHT),))
        )
        changing = asyncio.create_task(agent.do(change))
        await until(lambda: bool(world.table.pids()))
        changing.cancel()
        await asyncio.wait([changing])
        world.table.loading.set()
        outcome = await agent.do(Transaction())  # waits for its turn

        assert changing.cancelled()
        assert outcome.error is None
        assert not (await agent.state()).slices
        assert not world.table.pids()

    on_one_gpu(tmp_path, body)


def test_a_segment_that_begins_while_the_agent_stops_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment's workers start after all others have been stopped, before the agent ends."""
    writing, stopped = threading.Event(), threading.Event()

    async def stop_meanwhile(agent: Agent, world: World, uuid: str) -> None:
        spec = SegmentSpec("s", "m", "v", 1, 1, uuid, LEFT)
        await agent.do(Transaction(((CreateSlice(uuid, LEFT),),)))
        journal = agent.managed.segments.journal
        save = journal.save

        def slow(specs: Journal) -> None:
            writing.set()
            assert stopped.wait(30)
            save(specs)

        monkeypatch.setattr(journal, "save", slow)
        change = asyncio.create_task(agent.do(Transaction(((StartSegment(spec),),))))
        await until(writing.is_set)
        await agent.managed.segments.stop_all(0.0)
        stopped.set()

        outcome = await change
        assert "is stopping" in str(outcome.error)
        assert agent.managed.segments.running == ()
        assert world.table.pids() == {}

    on_one_gpu(tmp_path, stop_meanwhile)

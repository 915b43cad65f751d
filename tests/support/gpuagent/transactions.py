"""An agent whose hardware fails, whose workers do not start, and which dies at any moment.

All of it is the agent's own code on simulated NVML, but for the worker processes: those are entries
in a table, so that thousands of plans take seconds. What a killed process cannot do, this agent
cannot either: from its death on, nothing that it tries has an effect.
"""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from cinquefoil.gpuagent.v1.worker_pb2 import Hello
from services.gpuagent.core.model import Node, Outcome, Transaction
from services.gpuagent.core.transaction_rules import PriorState
from services.gpuagent.core.worker_config import Network, WorkerConfigBuilder
from services.gpuagent.core.worker_spec import WorkerEnvironment
from services.gpuagent.devices.clock_locks import ClockLocks
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.devices.fake_nvml.core.sensors import NoActivity
from services.gpuagent.devices.fake_nvml.library import install
from services.gpuagent.devices.mig_mode import MigModes
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.reconfigure.actions import Actions
from services.gpuagent.reconfigure.transactions import Transactions
from services.gpuagent.shared_memory.shared_counters import SharedCounters, opened
from services.gpuagent.state_store import Store
from services.gpuagent.supervision import processes
from services.gpuagent.supervision.journal import Journal
from services.gpuagent.supervision.managed_node import ManagedNode
from services.gpuagent.supervision.segments import Segments
from services.gpuagent.supervision.worker_allocation import WorkerAllocator
from services.gpuagent.supervision.worker_supervisor import SupervisionContext
from services.kit.clock import RealClock
from services.kit.profiles.core.analytic import AnalyticProfile
from tests.support.gpuagent.nvml_faults import FaultyNvml

TYPES = ("a30", "a100-40gb")
CHANGING = frozenset(
    {
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceDestroy",
        "nvmlGpuInstanceDestroy",
        "nvmlDeviceSetGpuLockedClocks",
        "nvmlDeviceResetGpuLockedClocks",
        "nvmlDeviceSetMigMode",
    }
)


class Killed(BaseException):
    """The agent's process was killed."""


class InstantClock(RealClock):
    """Waits for others to act, but for no time."""

    async def sleep(self, delay_s: float) -> None:
        """Yield to other tasks."""
        await asyncio.sleep(0 * delay_s)


class Death:
    """Counts what has an effect, and kills the agent at a chosen one."""

    def __init__(self) -> None:
        self.effects = 0
        self._after: int | None = None

    def at(self, effects: int | None) -> None:
        """Die after so many more effects; None: live on."""
        self.effects, self._after = 0, effects

    @property
    def came(self) -> bool:
        """The agent is dead."""
        return self._after is not None and self.effects >= self._after

    def knock(self) -> None:
        """An effect is about to happen."""
        if self.came:
            raise Killed
        self.effects += 1

    def at_disk(self, _: int) -> None:
        """Stand in for fsync: the process dies, not the power, so what is written stays."""
        self.knock()


@dataclass
class StandIn:
    """A worker process in the table, as an agent sees it."""

    pid: int
    slice_uuid: str
    death: Death
    gone: asyncio.Event
    exit_status: int | None = None

    def alive(self) -> bool:
        return not self.gone.is_set()

    async def ended(self) -> None:
        await self.gone.wait()

    async def end(self, _: float) -> None:
        self.death.knock()
        self.gone.set()


class ProcessTable:
    """The worker processes of the machine, by spec file; they outlive agents."""

    def __init__(self, death: Death) -> None:
        self._death = death
        self._pids = itertools.count(1)
        self._entries: dict[Path, StandIn] = {}
        self.failing_starts = 0
        self.loading: asyncio.Event | None = None

    def start(self, spec: Path, *_: Any, **__: Any) -> StandIn:
        """Stand in for `processes.start`."""
        self._death.knock()
        content = json.loads(spec.read_text())
        entry = StandIn(next(self._pids), content["slice_uuid"], self._death, asyncio.Event())
        self._entries[spec] = entry
        if self.failing_starts:
            self.failing_starts -= 1
            entry.exit_status = 1
            entry.gone.set()
        return entry

    def running(self, *_: Path) -> dict[Path, StandIn]:
        """Stand in for `processes.running`; all worlds have one folder."""
        return {spec: entry for spec, entry in self._entries.items() if entry.alive()}

    def pids(self) -> dict[str, int]:
        """Return the running workers: name of the spec file -> process id."""
        return {spec.stem: entry.pid for spec, entry in self.running().items()}

    async def answers(self, *_: str) -> Hello:
        """Stand in for the probe: a living process answers, once loaded."""
        if self.loading is not None:
            await self.loading.wait()
        return Hello()

    def holds(self, slice_uuid: str) -> bool:
        """Return whether a process runs on a slice."""
        return any(e.slice_uuid == slice_uuid for e in self._entries.values() if e.alive())


@dataclass
class Load(NoActivity):
    """Load on the simulated hardware by the processes of a table."""

    table: ProcessTable

    def busy(self, slice_uuid: str) -> bool:
        return self.table.holds(slice_uuid)


class Tapped:
    """The simulated library, with the agent's death before each call that changes something."""

    def __init__(self, library: FaultyNvml, death: Death) -> None:
        self._library = library
        self._death = death

    def __getattr__(self, symbol: str) -> Any:
        function = getattr(self._library, symbol)
        if symbol not in CHANGING:
            return function

        def tapped(*arguments: Any) -> Any:
            self._death.knock()
            return function(*arguments)

        return tapped


@dataclass(frozen=True)
class State:
    """All that a change may touch, as the machine has it."""

    mig: dict[str, tuple[bool, bool]]
    slices: frozenset[tuple[str, Placement]]
    segments: frozenset[SegmentSpec]
    clocks_mhz: dict[str, int]


@dataclass
class World:
    """The machine: it outlives agents."""

    folder: Path
    death: Death
    table: ProcessTable
    library: FaultyNvml
    gpu_counters: dict[str, SharedCounters]
    names: Iterator[int] = field(default_factory=itertools.count)

    def segment_id(self) -> str:
        """Return a name never used before."""
        return f"s-{next(self.names)}"


@contextmanager
def machine(folder: Path, types: tuple[str, ...] = TYPES, **options: Any) -> Iterator[World]:
    """Run a machine of simulated GPUs without agent.

    Args:
        folder: Folder of the agents' state.
        types: Types of the GPUs.
        options: Of the simulated library.
    """
    death, uuids = Death(), itertools.count(1)
    table = ProcessTable(death)
    library = FaultyNvml(
        "node",
        types,
        activity=lambda _: Load(table),
        new_uuid=lambda: UUID(int=next(uuids)),
        **options,
    )
    with ExitStack() as stack:
        tapped: Any = Tapped(library, death)
        stack.callback(install(tapped))
        stack.enter_context(mock.patch("services.kit.whole_file.os.fsync", death.at_disk))
        stack.enter_context(mock.patch.object(processes, "start", table.start))
        stack.enter_context(mock.patch.object(processes, "running", table.running))
        gpu_counters = {
            uuid: stack.enter_context(opened(folder / f"{uuid}.ledger"))
            for uuid in library.gpu_uuids
        }
        yield World(folder, death, table, library, gpu_counters)


@dataclass
class Agent:
    """One agent's life on a machine."""

    managed: ManagedNode
    transactions: Transactions

    async def node(self) -> Node:
        """Return the node as the agent reads it back."""
        return await self.managed.read()

    async def do(self, change: Transaction) -> Outcome:
        """Carry a change out."""
        return await self.transactions.execute(change)

    async def state(self) -> State:
        """Return what is, and make sure that nothing lies between being and not being."""
        node = await self.node()
        for gpu in node.gpus:
            assert not gpu.leftovers, f"leaked GPU instances: {gpu.leftovers}"
            assert not gpu.divided
        return State(
            mig={gpu.uuid: (gpu.mig_enabled, gpu.mig_pending) for gpu in node.gpus},
            slices=frozenset((g.uuid, placement) for g in node.gpus for placement, _ in g.slices),
            segments=frozenset(segment.spec for segment in node.segments),
            clocks_mhz={gpu.uuid: gpu.clock_mhz for gpu in node.gpus},
        )


def _wired(world: World, device: DeviceThread, keeping: asyncio.TaskGroup) -> Agent:
    clock, folder = InstantClock(), world.folder
    workers, environment = folder / "workers", WorkerEnvironment()
    segments = Segments(
        WorkerAllocator(workers, "127.0.0.1", environment, world.gpu_counters),
        Store(folder / "journal.json", Journal),
        SupervisionContext(clock, world.table.answers, lambda: None),
        keeping,
    )
    clocks = ClockLocks(device, folder / "clocks.json", allowed=True)
    modes = MigModes(device, folder / "modes.json", allowed=True)
    managed = ManagedNode(
        name="node",
        zone="Z",
        simulated=True,
        device=device,
        segments=segments,
        clocks=clocks,
        clock=clock,
        changed=lambda: None,
        tasks=keeping,
    )
    config_builder = WorkerConfigBuilder(
        {("m", "v"): (Network(Path("m.onnx"), AnalyticProfile(2.0)),)}, simulated=True
    )
    actions = Actions(managed, config_builder, modes)
    undo_log = Store(folder / "change.json", PriorState)
    return Agent(managed, Transactions(managed, actions, undo_log))


async def live(world: World, body: Callable[[Agent], Awaitable[None]]) -> bool:
    """Run an agent from its start after a crash to its end; return whether it was killed.

    Its workers run on.
    """
    killed = False
    try:
        async with DeviceThread(NvmlGpus(simulated=True)) as device, asyncio.TaskGroup() as keeping:
            agent = _wired(world, device, keeping)
            clocks = agent.managed.clocks
            await clocks.restore()
            await agent.managed.segments.adopt(agent.transactions.actions.worker_config)
            await agent.transactions.repair()
            await body(agent)
            for segment in agent.managed.segments._running.values():
                for task in segment.tasks:
                    task.cancel()  # the workers get no signal
    except* Killed:
        killed = True
    return killed

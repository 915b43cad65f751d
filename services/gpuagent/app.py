"""How the agent is wired, and how long each part lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from cinquefoil.gpuagent.v1 import gpuagent_pb2
from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import add_GpuAgentServiceServicer_to_server
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.gpuagent.assembly import Actuators, Context, Hardware, Observers
from services.gpuagent.clock_loop.loop import promises
from services.gpuagent.core.worker_config import WorkerConfigBuilder
from services.gpuagent.devices.hardware import gpus_of, software
from services.gpuagent.devices.mig_mode import kept_off
from services.gpuagent.metrics import AgentCollector
from services.gpuagent.metrics_aliases import ALIASES
from services.gpuagent.node_place import NodePlace, joining, place_of
from services.gpuagent.planner_link.node_report import NodeReport
from services.gpuagent.planner_link.uplink import ReportOutbox, Uplink
from services.gpuagent.servicer import GpuAgentServicer
from services.gpuagent.settings import (
    config_builder_of,
)
from services.gpuagent.shared_memory.shared_counters import SharedCounters, opened
from services.gpuagent.supervision.journal import TermJournal
from services.kit.clock import RealClock
from services.kit.config import Deployment
from services.kit.errors import FailedPrecondition
from services.kit.lock_file import LockFile
from services.kit.process import metrics
from services.kit.process.reload import Reloads
from services.kit.rpc import Access, HealthServicer, dial, serving

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

_SERVICES = (gpuagent_pb2.DESCRIPTOR.services_by_name["GpuAgentService"].full_name,)
_LIVE: Final = ("models.*",)
_GRACE_S: Final = 2.0
_HEARTBEAT_S: Final = 0.25
_LOOK_S: Final = 0.05
DRAIN_S: Final = 10.0
"""Time that accepted requests may take when the agent stops, s."""


async def run(  # noqa: PLR0913 - what the command line says, and what tests listen to
    deployment: Deployment,
    stop: asyncio.Event,
    started: Callable[[int], None] | None = None,
    *,
    node: str = "",
    join: bool = False,
    leave_workers: bool = False,
    reloads: Reloads | None = None,
) -> None:
    """Run the agent of one node until `stop`; then have its segments moved, and end its workers.

    Args:
        deployment: The whole deployment file.
        stop: Ends the agent.
        started: Called with the port once the agent serves.
        node: The node's name; "": the deployment's only one, or with `join` as `node.name` says.
        join: The node announces itself: the deployment file does not name it.
        leave_workers: Leave the workers running at the end, for the next agent to adopt.
        reloads: Reads the file again on request; models and variants are taken over.

    Raises:
        InvalidArgument: No such node, or it may not join.
        FailedPrecondition: Another agent runs on this node, or a state file is damaged.
    """
    if join:
        deployment, node = joining(deployment, node)
    place = place_of(deployment, node)
    config_builder = await asyncio.to_thread(config_builder_of, deployment, place.settings)
    async with AsyncExitStack() as stack:
        stack.enter_context(_only_agent(place))
        gpu_counters: dict[str, SharedCounters] = {}

        def counters(uuid: str) -> SharedCounters:
            if uuid not in gpu_counters:
                path = place.folder / "ledgers" / f"{uuid}.ledger"
                gpu_counters[uuid] = stack.enter_context(opened(path, repaired=True))
            return gpu_counters[uuid]

        device = await stack.enter_async_context(
            gpus_of(
                place.name,
                place.settings,
                place.folder / "hardware",
                counters,
                kept_off=kept_off(place.folder / "mig_modes.json"),
            )
        )
        gpus = await device.call(lambda d: d.list())
        versions = await device.call(software)
        counters_of = {gpu.uuid: counters(gpu.uuid) for gpu in gpus}
        hardware = Hardware(device, gpus, counters_of, versions)
        channel = await stack.enter_async_context(
            dial(deployment.planner.dials, deployment.identity("agent", place.name))
        )
        async with asyncio.TaskGroup() as keeping:
            heart = keeping.create_task(_beat(hardware.gpu_counters), name="agent.heart")
            context = Context(deployment, place, hardware, ReportOutbox(), RealClock(), keeping)
            agent = _Agent(context, config_builder)
            if reloads is not None:
                reloads.serve(_used(place.name), _LIVE, agent.reload)
            await agent.begin()
            async with _served(deployment, place, agent, started):
                await agent.work(PlannerServiceStub(channel), stop, leave_workers=leave_workers)
            heart.cancel()


@contextmanager
def _only_agent(place: NodePlace) -> Iterator[None]:
    """Hold the node's lock file while the block runs.

    Raises:
        FailedPrecondition: Another agent runs on this node, or the folder cannot be written.
    """
    path = place.folder / "agent.lock"
    with LockFile(path, f"nodes.{place.name}.state_dir") as lock:
        if not lock.take():
            raise FailedPrecondition(
                f"another agent runs on this node: {lock.holder()}, holds {path}",
                reason="AGENT_RUNNING",
            )
        yield


def _used(node: str) -> tuple[str, ...]:
    return (
        f"nodes.{node}*",
        "join*",
        "planner.listen",
        "planner.address",
        "mqtt*",
        "tls*",
        "access*",
    )


class _Agent:
    """The node's actuators and observers, and how long they work."""

    def __init__(self, context: Context, config_builder: WorkerConfigBuilder) -> None:
        self.clock, self.outbox, self.place = context.clock, context.outbox, context.place
        self.actuators = actuators = Actuators(
            context, config_builder, pue=lambda: self.observers.wall_power.pue
        )
        self.observers = observers = Observers(context, actuators)
        self.terms = TermJournal(context.place.folder / "term.json")
        self.report = NodeReport(
            actuators.node,
            observers.accounts,
            observers.reservations,
            context.hardware.software,
            observers.drift,
            observers.conditions,
            context.deployment.digest,
            address=context.place.settings.dial,
        )

    async def begin(self) -> None:
        """Take over the workers and clocks of an agent before this one; undo its last change."""
        actuators = self.actuators
        await self.terms.load()
        await actuators.clocks.restore()
        await actuators.segments.adopt(actuators.actions.worker_config)
        if actuators.transactions.permissions.granted:
            await actuators.transactions.repair()
        await self.observers.accounts.read()
        await self.observers.conditions.look(digests=False)  # workers compare, too

    async def reload(self, deployment: Deployment) -> None:
        """Take over models and variants; workers that run keep theirs until they are replaced.

        Raises:
            ServiceError, ConfigError: A profile cannot be read.
        """
        builder = await asyncio.to_thread(config_builder_of, deployment, self.place.settings)
        promised = await asyncio.to_thread(promises, deployment)
        self.actuators.actions.config_builder = builder
        self.observers.clock_loop.promised = promised
        self.observers.conditions.deployment = deployment
        self.report.config_digest = deployment.digest
        self.outbox.node_changed()

    async def work(
        self, planner: PlannerServiceAsyncStub, stop: asyncio.Event, *, leave_workers: bool
    ) -> None:
        """Report and execute until `stop`; then end the workers, unless the next agent adopts them.

        Where other nodes can take them over, segments are moved there first.
        """
        actuators, observers = self.actuators, self.observers
        uplink = Uplink(
            planner, self.outbox, self.report, actuators.transactions, self.terms, self.clock
        )
        async with asyncio.TaskGroup() as tasks:
            background = (
                tasks.create_task(observers.accounts.run(), name="agent.accounts"),
                tasks.create_task(uplink.run(), name="agent.uplink"),
                tasks.create_task(observers.gpu_loss_watch.run(), name="agent.gpu_loss_watch"),
                tasks.create_task(actuators.sharing.run(actuators.segments.rest), name="agent.mps"),
                tasks.create_task(observers.clock_loop.run(), name="agent.clocks"),
                tasks.create_task(observers.drift.run(), name="agent.drift"),
                tasks.create_task(observers.conditions.run(), name="agent.conditions"),
                *(
                    tasks.create_task(work, name=name)
                    for name, work in observers.wall_power.loops()
                ),
            )
            await stop.wait()
            if leave_workers:
                actuators.segments.abandon()
            else:
                await self._hand_over(uplink)
                await actuators.segments.stop_all(DRAIN_S)
                await actuators.clocks.release()
            for task in background:
                task.cancel()
        await observers.accounts.read()

    async def _hand_over(self, uplink: Uplink) -> None:
        """Have the planner move what runs here to other nodes, where there are any."""
        if not self.place.others:
            return
        self.observers.reservations.leaving = True
        self.outbox.node_changed()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.place.settings.leave_timeout_s):
                await self.clock.sleep(_LOOK_S)  # the planner hears that this node leaves for good
                while self.actuators.segments.running and not uplink.released:
                    await self.clock.sleep(_LOOK_S)


async def _beat(gpu_counters: Mapping[str, SharedCounters]) -> None:
    """Write the agent's heartbeat for the workers until cancelled; no driver can hold this up."""
    while True:
        for counters in gpu_counters.values():
            counters.beat()
        await asyncio.sleep(_HEARTBEAT_S)


@asynccontextmanager
async def _served(
    deployment: Deployment,
    place: NodePlace,
    agent: _Agent,
    started: Callable[[int], None] | None,
) -> AsyncIterator[None]:
    """Answer calls and expose metrics while the block runs."""
    servicer = GpuAgentServicer(agent.report, agent.actuators.transactions)
    collector = AgentCollector(
        agent.observers.accounts,
        agent.actuators.segments,
        agent.actuators.sharing,
        agent.observers.drift,
        agent.observers.clock_loop.governors,
        place.name,
        agent.actuators.node.device.readings,
    )
    tls, access = deployment.identity("agent", place.name), Access.of(deployment)
    health = HealthServicer()
    known = (agent.observers.accounts.list, place.name, agent.actuators.node.device.readings)
    aliases = [ALIASES[name](*known) for name in place.settings.metrics_aliases]
    with metrics.exposed(
        place.settings.metrics,
        [collector, *aliases],
        service="gpuagent",
        tls=tls,
        access=access,
        ready=lambda: health.ready,
    ):
        async with serving(
            place.settings.listen,
            lambda server: add_GpuAgentServiceServicer_to_server(servicer, server),
            _SERVICES,
            tls=tls,
            access=access,
            grace_s=_GRACE_S,
            probes=place.settings.health,
            health_servicer=health,
        ) as server:
            if started is not None:
                started(server.port)
            yield

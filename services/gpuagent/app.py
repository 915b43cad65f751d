"""How the agent is wired, and how long each part lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from cinquefoil.gpuagent.v1 import gpuagent_pb2
from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import add_GpuAgentServiceServicer_to_server
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.gpuagent import software
from services.gpuagent.accounts import Accounts
from services.gpuagent.actions import Actions
from services.gpuagent.blueprint import Drafter
from services.gpuagent.changes import Changes
from services.gpuagent.clocks import Clocks
from services.gpuagent.collector import AgentCollector, collected
from services.gpuagent.device import GpuInfo
from services.gpuagent.device_thread import DeviceThread
from services.gpuagent.drift_watch import DriftWatch
from services.gpuagent.files import held
from services.gpuagent.hardware import control_of, gpus_of
from services.gpuagent.inventory import Inventory
from services.gpuagent.journal import ChangeJournal, Journal
from services.gpuagent.keeper import Surroundings
from services.gpuagent.ledger import Ledger, opened
from services.gpuagent.mailbox import Mailbox
from services.gpuagent.metering import GpuMeter
from services.gpuagent.miad.build import governors, promises
from services.gpuagent.miad.collector import clocks_collected
from services.gpuagent.miad.loop import ClockLoop
from services.gpuagent.modes import MigModes, kept_off
from services.gpuagent.places import Places
from services.gpuagent.presence import Presence
from services.gpuagent.probe import answers
from services.gpuagent.reconfigurer import Reconfigurer
from services.gpuagent.reservations import Reservations
from services.gpuagent.segments import Segments
from services.gpuagent.servicer import GpuAgentServicer
from services.gpuagent.settings import (
    NodePlace,
    drafter_of,
    home_of,
    metered_of,
    patience_of,
    place_of,
    sharing_of,
)
from services.gpuagent.software import Software
from services.gpuagent.steps import Steps
from services.gpuagent.uplink import Uplink
from services.gpuagent.view import View
from services.gpuagent.wall_power import WallPower
from services.kit import metrics
from services.kit.clock import RealClock
from services.kit.deployment import Deployment
from services.kit.rpc import dial, serving

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

_SERVICES = (gpuagent_pb2.DESCRIPTOR.services_by_name["GpuAgentService"].full_name,)
_GRACE_S: Final = 2.0
_HEARTBEAT_S: Final = 0.25
DRAIN_S: Final = 10.0
"""Time that accepted requests may take when the agent stops, s."""


async def run(
    deployment: Deployment,
    stop: asyncio.Event,
    started: Callable[[int], None] | None = None,
    *,
    node: str = "",
) -> None:
    """Run the agent of one node until `stop`, then drain and end its workers.

    Args:
        deployment: The whole deployment file.
        stop: Ends the agent.
        started: Called with the port once the agent serves.
        node: The node's name; "": the deployment's only one.

    Raises:
        InvalidArgument: No such node.
        FailedPrecondition: Another agent runs on this node, or a state file is damaged.
    """
    place = place_of(deployment, node)
    drafter = await asyncio.to_thread(drafter_of, deployment, place.settings)
    async with AsyncExitStack() as stack:
        stack.enter_context(held(place.folder / "agent.lock"))
        ledgers: dict[str, Ledger] = {}

        def ledger(uuid: str) -> Ledger:
            if uuid not in ledgers:
                path = place.folder / "ledgers" / f"{uuid}.ledger"
                ledgers[uuid] = stack.enter_context(opened(path))
            return ledgers[uuid]

        device = await stack.enter_async_context(
            gpus_of(
                place.name,
                place.settings,
                place.folder / "hardware",
                ledger,
                kept_off=kept_off(place.folder / "mig_modes.json"),
            )
        )
        gpus = await device.call(lambda d: d.list())
        versions = await device.call(software.of_cpu if place.settings.cpu else software.read)
        ledgers_of = {gpu.uuid: ledger(gpu.uuid) for gpu in gpus}
        hardware = _Hardware(device, gpus, ledgers_of, versions)
        channel = await stack.enter_async_context(dial(deployment.planner.dial, deployment.tls))
        async with asyncio.TaskGroup() as keeping:
            heart = keeping.create_task(_beat(hardware.ledgers), name="agent.heart")
            agent = _Agent(deployment, place, hardware, drafter, keeping)
            await agent.begin()
            async with _served(deployment, place, agent, started):
                await agent.work(PlannerServiceStub(channel), stop)
            heart.cancel()


@dataclass(frozen=True, slots=True)
class _Hardware:
    """The GPUs, with a ledger each, and the versions of what drives them."""

    device: DeviceThread
    gpus: tuple[GpuInfo, ...]
    ledgers: Mapping[str, Ledger]
    software: Software


class _Agent:
    """Every object of the service, made once.

    Args:
        deployment: The whole deployment file.
        place: The node.
        hardware: Its GPUs.
        drafter: Draws blueprints.
        keeping: Owns the workers' keepers.
    """

    def __init__(
        self,
        deployment: Deployment,
        place: NodePlace,
        hardware: _Hardware,
        drafter: Drafter,
        keeping: asyncio.TaskGroup,
    ) -> None:
        settings, device, clock = place.settings, hardware.device, RealClock()
        self.clock = clock
        self.mailbox = mailbox = Mailbox()
        changed = mailbox.node_changed
        world = Surroundings(
            clock, partial(answers, tls=deployment.tls), changed, patience_of(settings.workers)
        )
        places = Places(home_of(deployment, settings, place.folder / "workers"), hardware.ledgers)
        journal = Journal(place.folder / "journal.json")
        self.sharing = sharing_of(settings, place.folder / "mps", clock)
        self.segments = Segments(places, journal, world, keeping, self.sharing)
        simulated = settings.simulated is not None
        control = control_of(place.name, settings)
        self.clocks = Clocks(device, place.folder / "clocks.json", allowed=settings.may_hold_clocks)
        may_switch = control.granted and (simulated or settings.allow_mig_mode)
        modes = MigModes(device, place.folder / "mig_modes.json", allowed=may_switch)
        inventory = Inventory(
            place.name,
            settings.zone,
            simulated,
            device,
            self.segments,
            self.clocks,
            pue=lambda: self.wall_power.pue,
        )
        self.actions = Actions(device, self.segments, drafter, self.clocks, modes, clock)
        undo_log = ChangeJournal(place.folder / "change.json")
        self.changes = Changes(self.actions, inventory, undo_log, clock, keeping)
        self.steps = Steps(self.changes, clock, changed, control)
        self.reconfigurer = Reconfigurer(inventory, self.steps)
        self.accounts = Accounts(
            {
                gpu.uuid: _meter(place, gpu, hardware.ledgers[gpu.uuid], clock.now().timestamp())
                for gpu in hardware.gpus
            },
            device,
            self.segments,
            clock,
            mailbox.energy_read,
        )
        self.wall_power = WallPower(place, deployment.mqtt, self.accounts, clock, changed)
        self.presence = Presence(
            known=frozenset(hardware.ledgers),
            device=device,
            segments=self.segments,
            clocks=self.clocks,
            clock=clock,
            changed=changed,
        )
        reservations = Reservations(
            inventory=inventory,
            segments=self.segments,
            reconfigurer=self.reconfigurer,
            clock=clock,
            changed=changed,
            tasks=keeping,
        )
        self.watch = DriftWatch(
            models={gpu.uuid: gpu.model for gpu in hardware.gpus},
            ledgers=hardware.ledgers,
            segments=self.segments,
            accounts=self.accounts,
            clocks=self.clocks,
            simulated=simulated,
            reserved=lambda: reservations.gpus,
            clock=clock,
            changed=mailbox.drifted,
        )
        self.clock_loop = ClockLoop(
            governors=governors(settings, hardware.gpus),
            promised=promises(deployment),
            segments=self.segments,
            clocks=self.clocks,
            clock=clock,
            scale_out=mailbox.scale_out,
            reserved=lambda: reservations.gpus,
        )
        self.view = View(inventory, self.accounts, reservations, hardware.software, self.watch)

    async def begin(self) -> None:
        """Take over the workers and clocks of an agent before this one; undo its last change."""
        await self.clocks.restore()
        await self.segments.adopt(self.actions.blueprint)
        if self.steps.control.granted:
            await self.changes.repair()
        await self.accounts.read()

    async def work(self, planner: PlannerServiceAsyncStub, stop: asyncio.Event) -> None:
        """Report and execute until `stop`; then drain the workers, and tell that too."""
        uplink = Uplink(planner, self.mailbox, self.view, self.steps, self.clock)
        async with asyncio.TaskGroup() as tasks:
            background = (
                tasks.create_task(self.accounts.run(), name="agent.accounts"),
                tasks.create_task(uplink.run(), name="agent.uplink"),
                tasks.create_task(self.presence.run(), name="agent.presence"),
                tasks.create_task(self.sharing.run(self.segments.rest), name="agent.mps"),
                tasks.create_task(self.clock_loop.run(), name="agent.clocks"),
                tasks.create_task(self.watch.run(), name="agent.drift"),
                *(tasks.create_task(work, name=name) for name, work in self.wall_power.loops()),
            )
            await stop.wait()
            await self.segments.stop_all(DRAIN_S)
            await self.clocks.release()
            for task in background:
                task.cancel()
        await self.accounts.read()


async def _beat(ledgers: Mapping[str, Ledger]) -> None:
    """Tell the workers, for ever, that an agent looks after them; no driver can hold this up."""
    while True:
        for ledger in ledgers.values():
            ledger.beat()
        await asyncio.sleep(_HEARTBEAT_S)


@asynccontextmanager
async def _served(
    deployment: Deployment,
    place: NodePlace,
    agent: _Agent,
    started: Callable[[int], None] | None,
) -> AsyncIterator[None]:
    """Answer calls and expose metrics while the block runs."""
    servicer = GpuAgentServicer(agent.view, agent.reconfigurer)
    with (
        metrics.exposed(place.settings.metrics),
        collected(AgentCollector(agent.accounts, agent.segments, agent.sharing, agent.watch)),
        clocks_collected(agent.clock_loop.governors),
    ):
        async with serving(
            place.settings.listen,
            lambda server: add_GpuAgentServiceServicer_to_server(servicer, server),
            _SERVICES,
            tls=deployment.tls,
            grace_s=_GRACE_S,
        ) as server:
            if started is not None:
                started(server.port)
            yield


def _meter(place: NodePlace, gpu: GpuInfo, ledger: Ledger, now_s: float) -> GpuMeter:
    return GpuMeter(
        place.folder / "energy" / f"{gpu.uuid}.json",
        ledger,
        metered_of(place.settings, gpu.model),
        began_s=now_s,
    )

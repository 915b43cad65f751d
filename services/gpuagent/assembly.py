"""The agent's objects, made once: those that change the node, and those that watch it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from services.gpuagent.clock_loop.loop import ClockLoop, governors, promises
from services.gpuagent.core.gpu_types import GpuInfo
from services.gpuagent.core.worker_config import WorkerConfigBuilder
from services.gpuagent.devices.clock_locks import ClockLocks
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.devices.hardware import Software, may_switch_mig_mode, permissions_of
from services.gpuagent.devices.mig_mode import MigModes
from services.gpuagent.energy.metering import GpuMeter, MeteredGpu
from services.gpuagent.energy.node_accounts import NodeAccounts
from services.gpuagent.energy.wall_power import WallPower
from services.gpuagent.node_conditions import NodeConditions
from services.gpuagent.node_place import NodePlace
from services.gpuagent.planner_link.uplink import ReportOutbox
from services.gpuagent.profile_drift.drift_watch import DriftWatch
from services.gpuagent.reconfigure.actions import Actions
from services.gpuagent.reconfigure.reservations import Reservations
from services.gpuagent.reconfigure.transactions import Transactions
from services.gpuagent.settings import (
    home_of,
    sharing_of,
)
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.gpuagent.supervision.gpu_loss_watch import GpuLossWatch
from services.gpuagent.supervision.journal import SegmentJournal, TransactionJournal
from services.gpuagent.supervision.managed_node import ManagedNode
from services.gpuagent.supervision.segments import Segments
from services.gpuagent.supervision.worker_allocation import WorkerAllocator
from services.gpuagent.supervision.worker_supervisor import SupervisionContext, answers
from services.kit.clock import Clock
from services.kit.config import Deployment


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPUs, with a ledger each, and the versions of what drives them."""

    device: DeviceThread
    gpus: tuple[GpuInfo, ...]
    gpu_counters: Mapping[str, SharedCounters]
    software: Software


@dataclass(frozen=True, slots=True)
class Context:
    """What all objects of an agent stand on.

    Attributes:
        deployment: The whole deployment.
        place: The node.
        hardware: Its GPUs.
        outbox: Takes what the planner is sent.
        clock: Time.
        keeping: Owns the tasks of the workers' supervisors.
    """

    deployment: Deployment
    place: NodePlace
    hardware: Hardware
    outbox: ReportOutbox
    clock: Clock
    keeping: asyncio.TaskGroup


class Actuators:
    """What changes the node: its workers, slices, MPS daemons and clocks, step by step."""

    def __init__(
        self, context: Context, config_builder: WorkerConfigBuilder, pue: Callable[[], float | None]
    ) -> None:
        place, clock, device = context.place, context.clock, context.hardware.device
        settings, folder = place.settings, place.folder
        permissions, simulated = (
            permissions_of(place.name, settings),
            settings.simulated is not None,
        )
        home = home_of(context.deployment, place.name, folder / "workers")
        self.sharing = sharing_of(settings, folder / "mps", clock)
        self.segments = Segments(
            WorkerAllocator(home, context.hardware.gpu_counters),
            SegmentJournal(folder / "journal.json"),
            SupervisionContext(
                clock,
                partial(answers, tls=context.deployment.identity("agent", place.name)),
                context.outbox.node_changed,
                settings.workers,
            ),
            context.keeping,
            self.sharing,
        )
        self.clocks = ClockLocks(device, folder / "clocks.json", allowed=settings.may_hold_clocks)
        self.node = ManagedNode(
            name=place.name,
            zone=settings.zone,
            simulated=simulated,
            device=device,
            segments=self.segments,
            clocks=self.clocks,
            clock=clock,
            changed=context.outbox.node_changed,
            tasks=context.keeping,
            pue=pue,
        )
        allowed = may_switch_mig_mode(settings)
        modes = MigModes(device, folder / "mig_modes.json", allowed=allowed)
        self.actions = Actions(self.node, config_builder, modes)
        undo_log = TransactionJournal(folder / "change.json")
        self.transactions = Transactions(self.node, self.actions, undo_log, permissions)


class Observers:
    """What watches the node: energy, wall power, conditions, GPUs that go, drift, clocks."""

    def __init__(self, context: Context, actuators: Actuators) -> None:
        place, hardware, outbox = context.place, context.hardware, context.outbox
        node, began_s = actuators.node, context.clock.now().timestamp()
        meters = {gpu.uuid: _meter(place, gpu, hardware, began_s) for gpu in hardware.gpus}
        self.accounts = accounts = NodeAccounts(node, meters, outbox.energy_read)
        self.wall_power = WallPower(
            node, place.settings.pue, context.deployment.mqtt, self.accounts
        )
        self.conditions = NodeConditions(
            context.deployment,
            place,
            node.clock,
            node.changed,
            node.segments.list,
            unsaved=lambda: accounts.unsaved,
        )
        self.gpu_loss_watch = GpuLossWatch(node, frozenset(hardware.gpu_counters))
        self.reservations = reservations = Reservations(node, actuators.transactions)
        self.drift = DriftWatch(
            node=node,
            models={gpu.uuid: gpu.model for gpu in hardware.gpus},
            gpu_counters=hardware.gpu_counters,
            accounts=accounts,
            reserved=lambda: reservations.gpus,
            changed=outbox.drifted,
        )
        self.clock_loop = ClockLoop(
            node=node,
            governors=governors(place.settings, hardware.gpus),
            promised=promises(context.deployment),
            scale_out=outbox.scale_out,
            reserved=lambda: reservations.gpus,
        )


def _meter(place: NodePlace, gpu: GpuInfo, hardware: Hardware, began_s: float) -> GpuMeter:
    simulated, idle_share = place.settings.simulated is not None, place.settings.idle_share
    metered = MeteredGpu(gpu.model.idle_power_w, gpu.model.sm_count, simulated, idle_share)
    path = place.folder / "energy" / f"{gpu.uuid}.json"
    return GpuMeter(path, hardware.gpu_counters[gpu.uuid], metered, began_s)

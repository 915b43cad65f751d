"""The agent of one node: its parts, and their lifetimes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from services.gpuagent.clock_loop.loop import ClockLoop, governors, promises
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.terms import Terms
from services.gpuagent.core.transaction_rules import PriorState
from services.gpuagent.core.worker_config import WorkerConfigBuilder
from services.gpuagent.devices.board_limits import BoardLimits
from services.gpuagent.devices.clock_locks import ClockLocks
from services.gpuagent.devices.hardware import Hardware, may_switch_mig_mode, permissions_of
from services.gpuagent.devices.mig_mode import MigModes
from services.gpuagent.energy.metering import GpuMeter, MeteredGpu
from services.gpuagent.energy.node_accounts import NodeAccounts
from services.gpuagent.energy.wall_power import WallPower
from services.gpuagent.node_conditions import NodeConditions
from services.gpuagent.node_place import NodePlace
from services.gpuagent.observation.history import History
from services.gpuagent.observation.observer import DISCOVER_S, Observer
from services.gpuagent.observation.recorder import Recorder
from services.gpuagent.planner_link.node_report import NodeReport
from services.gpuagent.planner_link.uplink import ReportOutbox, Uplink
from services.gpuagent.power_cap.loop import PowerCap
from services.gpuagent.profile_drift.drift_watch import DriftWatch
from services.gpuagent.reconfigure.actions import Actions
from services.gpuagent.reconfigure.reservations import Reservations
from services.gpuagent.reconfigure.transactions import Transactions
from services.gpuagent.settings import config_builder_of, sharing_of, worker_environment_of
from services.gpuagent.state_store import Store
from services.gpuagent.steering.loop import ClockSteering
from services.gpuagent.supervision.gpu_loss_watch import GpuLossWatch
from services.gpuagent.supervision.journal import Journal, TermJournal
from services.gpuagent.supervision.managed_node import ManagedNode
from services.gpuagent.supervision.segments import Segments
from services.gpuagent.supervision.worker_allocation import WorkerAllocator
from services.gpuagent.supervision.worker_supervisor import SupervisionContext, answers
from services.kit.clock import RealClock
from services.kit.config import Deployment
from services.kit.errors import ServiceError
from services.kit.power_limits import PROCESSORS_W
from services.kit.rpc import dial

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

_LOOK_S: Final = 0.05
DRAIN_S: Final = 10.0
"""Time that accepted requests may take when the agent stops, s."""


class Agent:
    """Composition of an agent: reconfiguration, supervision and reports of one node.

    Args:
        deployment: The whole deployment.
        place: The node.
        hardware: Its GPUs.
        config_builder: Builds the configurations of workers.
        tasks: Owns the workers' supervisors, and what outlives the call that began it.
    """

    def __init__(
        self,
        deployment: Deployment,
        place: NodePlace,
        hardware: Hardware,
        config_builder: WorkerConfigBuilder,
        tasks: asyncio.TaskGroup,
    ) -> None:
        settings, folder = place.settings, place.folder
        self.place = place
        self.outbox = outbox = ReportOutbox()
        self.terms = TermJournal(Store(folder / "term.json", Terms))
        self.node = node = self._managed(deployment, hardware, tasks)
        may_switch = may_switch_mig_mode(settings)
        modes = MigModes(node.device, folder / "mig_modes.json", allowed=may_switch)
        self.actions = Actions(node, config_builder, modes)
        undo_log = Store(folder / "change.json", PriorState)
        permissions = permissions_of(place)
        self.transactions = Transactions(node, self.actions, undo_log, permissions)
        began_s = node.clock.now().timestamp()
        meters = {gpu.uuid: _meter(place, gpu, hardware, began_s) for gpu in hardware.gpus}
        self.accounts = accounts = NodeAccounts(node, meters, partial(outbox.renew, "energy"))
        self.wall_power = WallPower(node, settings.pue, deployment.mqtt, accounts)
        self.conditions = NodeConditions(
            deployment,
            place,
            node.changed,
            node.segments.list,
            hardware.gpus,
            unsaved=lambda: accounts.unsaved,
            refused=node.device.refused,
            doubtful=accounts.doubtful,
            capped=lambda: self.power_cap.conditions(),  # noqa: PLW0108  # it is made later
        )
        self.gpu_loss_watch = GpuLossWatch(node, frozenset(hardware.gpu_counters))
        self.reservations = reservations = Reservations(node, self.transactions)
        self.drift = DriftWatch(
            node=node,
            hardware=hardware,
            accounts=accounts,
            reserved=lambda: reservations.gpus,
            changed=partial(outbox.renew, "drifts"),
        )
        self.clock_loop = ClockLoop(
            node=node,
            governors=governors(settings, hardware.gpus),
            promised=promises(deployment),
            scale_out=outbox.scale_out,
            reserved=lambda: reservations.gpus,
        )
        self.power_cap = PowerCap(
            node=node,
            gpus=tuple(hardware.gpus),
            power_w=lambda: {uuid: each.power_w for uuid, each in accounts.list().items()},
            boards=BoardLimits(
                node.device, folder / "power_limits.json", allowed=settings.may_limit_power
            ),
        )
        self.observer = Observer(node.device, lambda: None) if settings.observed else None
        self.steering: ClockSteering | None = None
        if self.observer is not None and settings.steer_clocks:
            self.steering = ClockSteering(
                self.observer, node.clocks, settings.steer_clocks, settings.clock_floor, node.clock
            )
        self.report = NodeReport(
            node,
            accounts,
            reservations,
            hardware.software,
            self.drift,
            self.conditions,
            deployment.digest,
            address=settings.dial,
        )

    def _managed(
        self, deployment: Deployment, hardware: Hardware, tasks: asyncio.TaskGroup
    ) -> ManagedNode:
        """Return the node, on which no segment runs yet."""
        name, settings, folder = self.place.name, self.place.settings, self.place.folder
        clock, changed, device = RealClock(), partial(self.outbox.renew, "node"), hardware.device
        tls, expected = deployment.identity("agent", name), deployment.expected("worker")
        probe = partial(answers, open_channel=partial(dial, tls=tls, expected=expected))
        segments = Segments(
            WorkerAllocator(
                folder / "workers",
                settings.worker_host,
                worker_environment_of(deployment, name),
                hardware.gpu_counters,
            ),
            Store(folder / "journal.json", Journal),
            SupervisionContext(clock, probe, changed, settings.workers),
            tasks,
            sharing_of(settings, folder / "mps", clock),
        )
        return ManagedNode(
            name=name,
            zone=settings.zone,
            simulated=settings.simulated is not None,
            device=device,
            segments=segments,
            clocks=ClockLocks(device, folder / "clocks.json", allowed=settings.may_hold_clocks),
            clock=clock,
            changed=changed,
            tasks=tasks,
            pue=lambda: self.wall_power.pue,
        )

    async def begin(self) -> None:
        """Take over the workers and clocks of an agent before this one; undo its last change."""
        await self.terms.load()
        await self.node.clocks.restore()
        await self.power_cap.begin()
        await self.node.segments.adopt(self.actions.worker_config)
        if self.transactions.permissions.granted:
            await self.transactions.repair()
        await self.accounts.read()
        await self.conditions.look(digests=False)  # workers compare, too

    async def reload(self, deployment: Deployment) -> None:
        """Take over models and variants; workers that run keep theirs until they are replaced.

        Raises:
            ServiceError, ConfigError: A profile cannot be read.
        """
        builder = await asyncio.to_thread(config_builder_of, deployment, self.place.settings)
        promised = await asyncio.to_thread(promises, deployment)
        self.actions.config_builder = builder
        self.clock_loop.promised = promised
        self.conditions.deployment = deployment
        self.report.config_digest = deployment.digest
        self.node.changed()

    async def work(
        self, planner: PlannerServiceAsyncStub, stop: asyncio.Event, *, leave_workers: bool
    ) -> None:
        """Report and execute until `stop`; then end the workers, unless the next agent adopts them.

        Where other nodes can take them over, segments are moved there first.
        """
        segments, clocks = self.node.segments, self.node.clocks
        uplink = Uplink(
            planner,
            self.outbox,
            self.report,
            self.transactions,
            self.terms,
            self.power_cap.set_share,
        )
        every = self.node.every
        loops = (
            ("agent.accounts", every(NodeAccounts.PERIOD_S, self.accounts.read)),
            ("agent.uplink", uplink.run()),
            ("agent.gpu_loss_watch", every(GpuLossWatch.PERIOD_S, self.gpu_loss_watch.look)),
            ("agent.mps", segments.sharing.run(segments.rest)),
            ("agent.clocks", self.clock_loop.run()),
            ("agent.power_cap", every(PowerCap.PERIOD_S, self.power_cap.look)),
            ("agent.power_limits", every(PowerCap.LEARN_S, self.power_cap.learn)),
            ("agent.drift", every(DriftWatch.PERIOD_S, self.drift.look)),
            ("agent.conditions", every(NodeConditions.PERIOD_S, self._look)),
            *self.wall_power.loops(),
            *((("agent.observer", self._observe(self.observer)),) if self.observer else ()),
            *((("agent.steering", self.steering.run()),) if self.steering else ()),
        )
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(loop, name=name) for name, loop in loops]
            await stop.wait()
            if leave_workers:
                segments.abandon()
            else:
                await self._hand_over(uplink)
                await segments.stop_all(DRAIN_S)
                await clocks.release()
                await self.power_cap.boards.release()
            for task in background:
                task.cancel()
        await self.accounts.read()

    async def _observe(self, observer: Observer) -> None:
        """Observe what others run; GPUs that do not answer now are looked for again."""
        history = History(self.place.folder / "observations.db")
        recorder = Recorder(observer, history, self.node.clock)
        while True:
            try:
                await observer.start()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(recorder.run(), name="agent.records")
                    await observer.run()
            except* ServiceError:
                await self.node.clock.sleep(DISCOVER_S)

    async def _look(self) -> None:
        """Look at the conditions; what drivers refused is queried again first."""
        if self.node.device.refused():
            with suppress(ServiceError):
                await self.node.device.call(lambda d: d.list())
        await self.conditions.look()

    async def _hand_over(self, uplink: Uplink) -> None:
        """Wait until the planner has moved the segments to other nodes, if there are any."""
        if not self.place.others:
            return
        self.reservations.leaving = True
        self.node.changed()
        clock = self.node.clock
        with suppress(TimeoutError):
            async with asyncio.timeout(self.place.settings.leave_timeout_s):
                await clock.sleep(_LOOK_S)  # the planner hears that this node leaves for good
                while self.node.segments.running and not uplink.released:
                    await clock.sleep(_LOOK_S)


def _meter(place: NodePlace, gpu: GpuInfo, hardware: Hardware, began_s: float) -> GpuMeter:
    simulated, idle_share = place.settings.simulated is not None, place.settings.idle_share
    model = gpu.model
    is_gpu = place.settings.cpu is None  # a CPU's meter is of all that runs on the machine
    metered = MeteredGpu(
        model.idle_power_w,
        model.context_power_w,
        model.sm_count,
        simulated,
        idle_share,
        limit_w=model.max_power_w if is_gpu else max(model.max_power_w, PROCESSORS_W),
    )
    path = place.folder / "energy" / f"{gpu.uuid}.json"
    return GpuMeter(path, hardware.gpu_counters[gpu.uuid], metered, began_s)

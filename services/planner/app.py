"""How the planner is wired, and how long each part lives."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from cinquefoil.planner.v1 import planner_pb2
from services.kit.backoff import Backoff
from services.kit.clock import RealClock
from services.kit.config import Deployment
from services.kit.errors import Cancelled, Unavailable, leaves
from services.kit.process import metrics
from services.kit.process.reload import Reloads
from services.kit.rpc import Access, HealthServicer, Limits, Serving, dial, serving
from services.kit.telemetry import logs
from services.planner.adapters import carbon_client, mqtt
from services.planner.adapters.agent_sessions import AgentSessions
from services.planner.adapters.router_sessions import RouterSessions
from services.planner.adapters.store import Store, open_store
from services.planner.change_event import ChangeEvent
from services.planner.control.account_reader import AccountReader
from services.planner.control.accounting_writer import AccountingWriter
from services.planner.control.counterfactual import Counterfactual
from services.planner.control.deployment_in_force import DeploymentChanges, InForce
from services.planner.control.leading import Leading
from services.planner.control.live_environment import LiveEnvironment
from services.planner.control.membership import Membership
from services.planner.control.publisher import Publisher
from services.planner.control.queries import Queries
from services.planner.control.reconciler import Reconciler
from services.planner.control.serving_policies import ServingPolicies
from services.planner.core.accounting.fleet_sites import FleetSites
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.conditions import cluster_conditions
from services.planner.front import Front
from services.planner.servicer import PlannerServicer

if TYPE_CHECKING:
    from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceAsyncStub

_log = logs.get("planner")

_SWITCH_S = 0.0005
"""How long the event loop waits for a thread that plans or writes, or such a thread for it; with
Python's 5 ms, each of them again and again (docs/scaling.md)."""

_GRACE_S = 2.0
_AGAIN_S = 0.2
_MAX_MESSAGE_BYTES = 4 * 2**20  # a node's inventory, a plan to compare with
_LIVE = ("models.*", "nodes.*", "join*", "planner.objective.*", "planner.strategy")
_USED = (
    "planner.*",
    "carbon.listen",
    "carbon.address",
    "carbon.replay*",
    "mqtt*",
    "tls*",
    "access*",
)
_SERVICES = (planner_pb2.DESCRIPTOR.services_by_name["PlannerService"].full_name,)


async def run(
    deployment: Deployment,
    stop: asyncio.Event,
    started: Callable[[int], None] | None = None,
    *,
    reloads: Reloads | None = None,
) -> None:
    """Plan, roll out and serve clients until `stop` is set, whenever this planner leads.

    Args:
        deployment: The whole deployment file.
        stop: Ends the service: streams end, what was seen is written, steps in flight are left
            to the next start.
        started: Called with the port once the service serves.
        reloads: Reads the file again on request; models, nodes and the objective are taken over.

    Raises:
        FailedPrecondition: Another planner has the database, or its schema is another planner's.
        Unavailable: The database cannot be reached.
    """
    sys.setswitchinterval(_SWITCH_S)
    tls, access = deployment.identity("planner"), Access.of(deployment)
    health = HealthServicer()
    with metrics.exposed(
        deployment.planner.metrics,
        service="planner",
        tls=tls,
        access=access,
        ready=lambda: health.ready,
    ):
        while not stop.is_set():
            try:
                await _lead(deployment, stop, started, reloads, health)
            except Exception as error:
                why = next((each for each in leaves(error) if isinstance(each, Unavailable)), None)
                if why is None or not deployment.planner.standby:
                    raise
                _log.warning("this planner does not lead any more", why=why.message)
                await asyncio.sleep(_AGAIN_S)


async def _lead(
    deployment: Deployment,
    stop: asyncio.Event,
    started: Callable[[int], None] | None,
    reloads: Reloads | None,
    health: HealthServicer,
) -> None:
    """Wait until this planner leads; then plan and serve until `stop`.

    Raises:
        Deposed: Another planner leads.
    """
    tls, front = deployment.identity("planner"), Front()
    async with AsyncExitStack() as clients, AsyncExitStack() as stack:
        if deployment.planner.standby:
            server = await clients.enter_async_context(_served(deployment, front, health))
        store = await _opened(stack, deployment, stop)
        if store is None:
            return
        channel = await stack.enter_async_context(dial(deployment.carbon.dials, tls))
        planner = _Planner(await InForce.restored(deployment, store), store)
        if reloads is not None:
            reloads.serve(_USED, _LIVE, planner.changes.reload)
        broker = mqtt.broker_tasks(deployment.mqtt, planner.publisher.board, RealClock())
        try:
            async with asyncio.TaskGroup() as tasks:
                lease = tasks.create_task(planner.leading.keep(), name="planner.lease")
                await planner.restore()
                front.planner = planner.servicer
                if not deployment.planner.standby:
                    server = await clients.enter_async_context(_served(deployment, front, health))
                await server.set_ready(ready=True)
                if started is not None:
                    started(server.port)
                await _work(planner, CarbonServiceStub(channel), broker, stop)
                lease.cancel()
        finally:
            planner.servicer.drain()
            await clients.aclose()  # no call may find the database closed
        await planner.account_writer.save()


async def _opened(
    stack: AsyncExitStack, deployment: Deployment, stop: asyncio.Event
) -> Store | None:
    """Return the open database, when this planner leads; None: `stop` came first."""
    settings = deployment.planner
    if not settings.standby:
        return await stack.enter_async_context(open_store(settings.database))
    backoff = Backoff()
    while not stop.is_set():
        opening = open_store(settings.database, patience_s=math.inf, stop=stop)
        try:
            return await stack.enter_async_context(opening)
        except Cancelled:
            return None
        except Unavailable as error:
            _log.warning("this planner cannot lead", why=error.message)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), backoff.next_s())
    return None


def _served(
    deployment: Deployment, front: Front, health: HealthServicer
) -> AbstractAsyncContextManager[Serving]:
    """Serve while the block runs: NOT_SERVING, until this planner leads and says so."""
    return serving(
        deployment.planner.listen,
        front.register,
        _SERVICES,
        tls=deployment.identity("planner"),
        access=Access.of(deployment),
        limits=Limits(message_bytes=_MAX_MESSAGE_BYTES),
        grace_s=_GRACE_S,
        ready=False,
        transport=deployment.rpc.transport,
        probes=deployment.planner.health,
        health_servicer=health,
    )


class _Planner:
    """Every object of the service, made once."""

    def __init__(self, now: InForce, store: Store) -> None:
        deployment, clock = now.deployment, RealClock()
        settings = deployment.planner
        self.zones = deployment.node_zones
        self.horizon = settings.horizon
        self.leading = leading = Leading(store, clock, steps_down=settings.standby)
        self.changed = changed = ChangeEvent()
        self.state = state = ClusterState.of(deployment, now.models, clock, changed)
        accounting = settings.accounting
        sites = FleetSites(
            state.fleet.settings,
            state.fleet,
            state.intensity_gco2e_per_kwh,
            accounting.embodied,
            state.provenance,
        )
        retention = timedelta(days=accounting.retention_d)
        self.account_writer = AccountingWriter(store, clock, sites, state.level.aims, retention)
        self.counterfactual = Counterfactual(settings, state, self.account_writer.rate)
        policies = ServingPolicies(deployment, store)
        self.publisher = Publisher(
            deployment,
            store,
            state.fleet,
            policies,
            lambda: (*cluster_conditions(state), *self.reconciler.standing.conditions()),
            lambda: leading.term,
        )
        agents = AgentSessions(
            state.fleet,
            self.account_writer.read,
            state.readings,
            clock,
            changed,
            models=state.level.aims.keys(),
        )
        self.account_writer.collect = agents.book
        self.account_writer.collect_each = agents.book_each
        state.before_intensity = agents.book_all
        self.membership = Membership(
            state.fleet,
            store,
            clock,
            changed,
            self.account_writer,
            self.zones,
            agents.forget,
            local=deployment.tls is None and not (deployment.access and deployment.access.insecure),
        )
        self.routers = routers = RouterSessions(state)
        environment = LiveEnvironment(
            store, self.account_writer, self.publisher, agents, routers, leading
        )
        self.reconciler = Reconciler(
            settings, state, environment, self.account_writer, self.publisher
        )
        self.agents = agents
        self.policies = policies
        self.changes = DeploymentChanges(now, store, clock, self.use)
        self.servicer = PlannerServicer(
            changes=self.changes,
            leading=leading,
            membership=self.membership,
            state=state,
            store=store,
            account_writer=self.account_writer,
            publisher=self.publisher,
            policies=policies,
            agents=agents,
            routers=routers,
            reconciler=self.reconciler,
            account_reader=AccountReader(store, self.account_writer, clock),
            queries=Queries(
                settings,
                state=state,
                store=store,
                account_writer=self.account_writer,
                reconciler=self.reconciler,
            ),
        )

    async def restore(self) -> None:
        """Take up the state of before a restart."""
        await self.membership.restore()
        await self.reconciler.restore()
        if self.publisher.board.value.plan is not None:
            self.routers.expect()

    def use(self, now: InForce, principal: str) -> None:
        """Have all that uses the deployment take it over, at once."""
        self.agents.book_all()  # a node that is removed has no site to be booked at
        self.state.configure(now.deployment, now.models, principal)
        self.policies.use(now.deployment)
        self.publisher.use(now.deployment)


async def _work(
    planner: _Planner,
    carbon: CarbonServiceAsyncStub,
    broker: Iterable[tuple[str, Coroutine[Any, Any, None]]],
    stop: asyncio.Event,
) -> None:
    """Run the background tasks until `stop`; one that crashes ends the service."""
    state = planner.state
    async with asyncio.TaskGroup() as tasks:
        background = [
            tasks.create_task(work, name=f"planner.{name}")
            for name, work in (
                (
                    "grid",
                    carbon_client.follow(
                        carbon, planner.zones, planner.horizon, state, RealClock()
                    ),
                ),
                ("account_writer", planner.account_writer.keep()),
                ("counterfactual", planner.counterfactual.keep()),
                ("publisher", planner.publisher.follow(planner.changed)),
                ("reconciler", planner.reconciler.run()),
                ("membership", planner.membership.keep()),
                *broker,
            )
        ]
        await stop.wait()
        for task in background:
            task.cancel()

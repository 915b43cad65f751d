"""Wiring of the planner, and the lifetime of its parts."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import grpc

from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import add_PlannerServiceServicer_to_server
from cinquefoil.regions.v1.regions_pb2_grpc import add_RegionServiceServicer_to_server
from keda.externalscaler_pb2_grpc import add_ExternalScalerServicer_to_server
from services.kit.backoff import Backoff
from services.kit.clock import RealClock
from services.kit.config import Deployment
from services.kit.errors import Cancelled, Unavailable, leaves
from services.kit.process import metrics, systemd
from services.kit.process.reload import Reloads
from services.kit.rpc import Access, HealthServicer, Limits, Serving, dial, serving
from services.kit.telemetry import logs
from services.planner.adapters import carbon_client, mqtt, prometheus
from services.planner.adapters.store import Store, open_store
from services.planner.assembly import Planner
from services.planner.control.deployment_in_force import InForce
from services.planner.region_servicer import REGION_SERVICE, RegionServicer
from services.planner.scaler import EXTERNAL_SCALER, KedaScaler
from services.planner.servicer import PlannerServicer

if TYPE_CHECKING:
    from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceAsyncStub

_log = logs.get("planner")

_SWITCH_S = 0.0005
"""Longest time that the event loop waits for a thread that plans or writes, or the reverse, s;
Python's 5 ms would be waited again and again (docs/scaling.md)."""

_GRACE_S = 2.0
_AGAIN_S = 0.2
_MAX_MESSAGE_BYTES = 4 * 2**20  # a node's inventory, a plan to compare with
_LIVE = ("models.*", "nodes.*", "join*", "planner.objective.*", "planner.strategy", "sites*")
_USED = (
    "planner.*",
    "carbon.listen",
    "carbon.address",
    "carbon.replay*",
    "mqtt*",
    "sites*",
    "grid*",
    "tls*",
    "access*",
)
_SERVICES = (
    planner_pb2.DESCRIPTOR.services_by_name["PlannerService"].full_name,
    EXTERNAL_SCALER,
    REGION_SERVICE,
)


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
        stop: Ends the service: streams end, outcomes are written, steps in flight are left to the
            next start.
        started: Called with the port once the service serves.
        reloads: Reads the file again on request; models, nodes and the objective are applied.

    Raises:
        FailedPrecondition: Another planner has the database, or its schema is incompatible.
        Unavailable: The database cannot be reached.
    """
    sys.setswitchinterval(_SWITCH_S)
    tls, access = deployment.identity("planner"), Access.of(deployment)
    health = HealthServicer(systemd.ready)
    async with metrics.exposed(
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
    tls, servicer = deployment.identity("planner"), PlannerServicer()
    if reloads is not None:
        reloads.serve(_USED, _LIVE)
    async with AsyncExitStack() as clients, AsyncExitStack() as stack:
        others = None
        if deployment.planner.standby:
            expected = deployment.expected("planner")
            others = await stack.enter_async_context(dial(deployment.planner.dials, tls, expected))
        scaler = KedaScaler(servicer, others)
        if deployment.planner.standby:
            server = await clients.enter_async_context(
                _served(deployment, servicer, scaler, health)
            )
            systemd.ready("stands by")
        store = await _opened(stack, deployment, stop)
        if store is None:
            return
        channel = await stack.enter_async_context(
            dial(deployment.carbon.dials, tls, deployment.expected("carbon"))
        )
        stack.enter_context(_shown(store))
        planner = Planner(await _in_force(deployment, reloads, store), store)
        if reloads is not None:
            reloads.serve(_USED, _LIVE, planner.changes.reload)
            stack.callback(reloads.serve, _USED, _LIVE)
        broker = mqtt.broker_tasks(
            deployment.mqtt, planner.publisher.board, RealClock(), planner.mqtt_events
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                lease = tasks.create_task(planner.leading.keep(), name="planner.lease")
                await planner.restore()
                servicer.planner = planner
                if not deployment.planner.standby:
                    server = await clients.enter_async_context(
                        _served(deployment, servicer, scaler, health)
                    )
                await server.set_ready(ready=True)
                if started is not None:
                    started(server.port)
                await _work(planner, CarbonServiceStub(channel), broker, stop)
                lease.cancel()
        finally:
            servicer.drain()
            scaler.drain()
            await clients.aclose()  # no call may find the database closed
        await planner.account_writer.save()
        await planner.history.save()


@contextmanager
def _shown(store: Store) -> Iterator[None]:
    """Show who leads in the metrics while the block runs."""
    leadership, clock = store.leadership, RealClock()
    prometheus.TERM.set_function(lambda: leadership.lease.term)
    prometheus.LEASE.set_function(lambda: leadership.tenure.lasts_s(clock.monotonic()))
    prometheus.LEADS.set(1)
    try:
        yield
    finally:
        prometheus.LEADS.set(0)


async def _in_force(deployment: Deployment, reloads: Reloads | None, store: Store) -> InForce:
    """Return the deployment at the beginning: its file may have changed while another led."""
    while True:
        file = deployment if reloads is None else reloads.deployment
        restored = await InForce.restored(file, store)
        if reloads is None or file is reloads.deployment:
            return restored


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
                async with asyncio.timeout(backoff.next_s()):
                    await stop.wait()
    return None


def _served(
    deployment: Deployment,
    servicer: PlannerServicer,
    scaler: KedaScaler,
    health: HealthServicer,
) -> AbstractAsyncContextManager[Serving]:
    """Serve while the block runs: NOT_SERVING, until this planner leads and says so."""

    def register(server: grpc.aio.Server) -> None:
        add_PlannerServiceServicer_to_server(servicer, server)
        add_ExternalScalerServicer_to_server(scaler, server)
        add_RegionServiceServicer_to_server(RegionServicer(servicer), server)

    return serving(
        deployment.planner.listen,
        register,
        _SERVICES,
        tls=deployment.identity("planner"),
        access=Access.of(deployment),
        limits=Limits(
            message_bytes=_MAX_MESSAGE_BYTES, streams=deployment.planner.max_connection_requests
        ),
        grace_s=_GRACE_S,
        ready=False,
        transport=deployment.rpc.transport,
        probes=deployment.planner.health,
        health_servicer=health,
    )


async def _work(
    planner: Planner,
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
                        carbon, planner.zones, planner.settings.horizon, state, RealClock()
                    ),
                ),
                ("grid_memory", planner.grid_memory.keep()),
                ("account_writer", planner.account_writer.keep()),
                ("history", planner.history.keep()),
                ("counterfactual", planner.counterfactual.keep()),
                ("publisher", planner.publisher.follow(state.changed)),
                ("reconciler", planner.reconciler.run()),
                ("membership", planner.membership.keep()),
                ("waiting", planner.waiting.keep()),
                ("openadr", planner.follow_openadr()),
                ("carbon_budgets", planner.carbon_budgets.keep()),
                ("energy_prices", planner.energy_prices.follow()),
                ("mqtt.grid", planner.follow_mqtt()),
                *([("regions", planner.regions.keep())] if planner.regions else []),
                ("kubernetes", planner.follow_kubernetes()),
                ("site_power", planner.site_power.keep()),
                *broker,
            )
        ]
        await stop.wait()
        for task in background:
            task.cancel()

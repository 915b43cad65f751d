"""Composition root of the router."""

import asyncio
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import grpc
from prometheus_client import CollectorRegistry

from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import add_RouterServiceServicer_to_server
from services.kit import config
from services.kit.clock import RealClock
from services.kit.config import Deployment
from services.kit.http.client import HttpClient
from services.kit.process import systemd
from services.kit.process.memory import keep_large_blocks
from services.kit.process.metrics import exposed
from services.kit.process.reload import Reloads
from services.kit.rpc import Access, HealthServicer, Limits, Serving, dial, serving
from services.kit.telemetry import logs
from services.router.adapters.carbon_client import CarbonClient
from services.router.adapters.convert import to_report
from services.router.adapters.planner_client import ConfigDigests, Heard, report_load, watch_routes
from services.router.adapters.predictor_client import PredictorClient
from services.router.adapters.prometheus import RouterCollector, collectors_registry
from services.router.adapters.region_routers import RegionRouters
from services.router.adapters.routing_file import RoutingFile
from services.router.adapters.server_port import ServerPorts
from services.router.adapters.tokens import TokenVerifier
from services.router.adapters.worker_stream import WorkerStreams, links
from services.router.core.accounting.account import Account
from services.router.core.accounting.receipt_watchers import ReceiptWatchers
from services.router.core.model import Instance, ModelRoutes, RoutingTable
from services.router.core.model_registry import ModelRegistry, limits
from services.router.core.quotas import Quotas
from services.router.core.readiness import Readiness
from services.router.core.server_pools import ServerPools
from services.router.core.worker_port import WorkerPort
from services.router.edge.app import edge
from services.router.frontend.messages import transport_limit
from services.router.picker.app import picker
from services.router.picker.listener import PickerListener
from services.router.picker.pool_follower import PoolFollower
from services.router.picker.servicer import Profiles
from services.router.runtime.decision_executor import DecisionExecutor
from services.router.runtime.engine import Engine
from services.router.runtime.processes import LIVE, USED, run_several
from services.router.servicer import INFERENCE, InferenceServicer, RouterServicer, add_inference

_SERVICES = (
    INFERENCE.full_name,
    router_pb2.DESCRIPTOR.services_by_name["RouterService"].full_name,
)

_log = logs.get("routes")

_FIRST_PLAN_S = 20.0
"""Time that a planner without a plan has for one before a router is ready without routes, s."""

_GRACE_S = 1.0  # after the drain only answers on their way and health watchers are left


async def run(
    deployment: Deployment,
    stop: asyncio.Event,
    started: Callable[[int], None] | None = None,
    *,
    reloads: Reloads | None = None,
) -> None:
    """Route until `stop`, in this process or in several, then answer what was accepted and return.

    Args:
        deployment: The whole file.
        stop: Set it to end the service.
        started: Called with the port once requests are taken.
        reloads: Reads the file again on request; the limits of new models are taken over.

    Raises:
        RuntimeError: The address cannot be bound.
    """
    if deployment.router.processes > 1:
        await run_several(deployment, stop, run_one, started, reloads=reloads)
    else:
        await run_one(deployment, stop, started, reloads=reloads)


async def run_one(
    deployment: Deployment,
    stop: asyncio.Event,
    started: Callable[[int], None] | None,
    *,
    reloads: Reloads | None,
) -> None:
    """Route until `stop` in this process, alone on the port or beside others; as `run`."""
    keep_large_blocks()
    settings, identity = deployment.router, deployment.identity("router")
    trusted = deployment.access and deployment.access.tokens
    tokens = TokenVerifier(trusted) if trusted else None
    access, health = Access.of(deployment, tokens), HealthServicer(systemd.ready)
    router = _Router(deployment)
    registry = router.metrics()
    if reloads is not None:
        used = USED if settings.processes == 1 else ()  # else the parent process logs it
        reloads.serve(used, LIVE, router.reload)
    async with (
        exposed(
            settings.metrics,
            registry=registry,
            service="router",
            tls=identity,
            access=access,
            ready=lambda: health.ready,
        ),
        dial(deployment.planner.dials, identity, deployment.expected("planner")) as planner,
        dial(deployment.carbon.dials, identity, deployment.expected("carbon")) as carbon,
        serving(
            settings.listen,
            router.register,
            _SERVICES,
            tls=identity,
            access=access,
            token_address=settings.token_listen,
            grace_s=_GRACE_S,
            ready=False,
            limits=_limits(settings),
            compression=settings.compression,
            shared_port=settings.processes > 1,
            transport=deployment.rpc.transport,
            probes=settings.health,
            health_servicer=health,
        ) as server,
        router.streams,
        _batches(deployment) as batches,
        router.ports,
        router.follower,
        router.picker_at(access),
        edge(
            settings,
            router.engine,
            router.inference,
            tls=identity,
            access=access,
            tokens=tokens is not None,
            batches=batches,
            grace_s=_GRACE_S,
            registry=registry,
        ),
    ):
        await router.use_pools(deployment if reloads is None else reloads.deployment)
        if started is not None:
            started(server.port)
        await router.work(server, planner, carbon, stop)


@asynccontextmanager
async def _batches(deployment: Deployment) -> AsyncIterator[HttpClient | None]:
    """Keep connections to the batch service while the block runs; None: there is none."""
    section = deployment.batch
    if section is None or not section.http_listen:
        yield None
        return
    where = section.http_address or section.http_listen
    tls, expected = deployment.identity("router"), deployment.expected("batch")
    async with HttpClient.connected(where, tls, expected, section.max_connections) as http:
        yield http


def _limits(settings: config.Router) -> Limits:
    """Return limits for many clients, large requests, and as many calls as the queues hold."""
    return Limits(
        message_bytes=transport_limit(settings.max_request_bytes),
        connections=settings.max_connections,
        streams=settings.max_connection_requests,
        calls=settings.max_requests + settings.waiting.max_requests,
    )


class _Router:
    """Every object of the service, made once."""

    def __init__(self, deployment: Deployment) -> None:
        self._settings = deployment.router
        self._clock = RealClock()
        self._carbon = CarbonClient()
        self._watchers = ReceiptWatchers(random.random)
        dead_after_s, identity = self._settings.worker_dead_after_s, deployment.identity("router")
        link = links(
            identity,
            expected=deployment.expected("worker"),
            dead_after_s=dead_after_s,
            message_bytes=self._settings.worker_message_bytes,
        )
        self.streams = WorkerStreams(link, self._clock)
        self.pools = ServerPools({})
        self.ports = ServerPorts(self._clock, self.pools.metrics_of)
        self.follower = PoolFollower(self.pools, self.found, self._clock)
        self.profiles = Profiles(self.pools)
        self._predictor = self._predictor_client(deployment)
        self._report_due = asyncio.Event()
        self.regions = RegionRouters(deployment, self._clock)
        self.engine = Engine(
            ModelRegistry.at_start(deployment, self._carbon),
            self._connect,
            open_account=self._account,
            lengths=self._predictor,
            clock=self._clock,
            default_timeout_s=self._settings.default_timeout_s,
            quotas=Quotas(self._settings.quotas) if self._settings.quotas else None,
            waiting=self._settings.waiting,
            forwards=self.regions if deployment.regions else None,
            report_soon=self._report_due.set,
        )
        self.inference = InferenceServicer(
            self.engine, self._clock, self._settings, deployment.log_level
        )
        self._id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._started_at = self._clock.now()
        self.config = ConfigDigests(deployment.digest)
        file = self._settings.routing_file
        self._file = None if file is None else RoutingFile(file)
        self._reported_s = self._clock.monotonic()
        self._picker: PickerListener | None = None
        self._heard, self._routed = asyncio.Event(), asyncio.Event()
        self._planned = self.engine.registry.table
        self.intensity = self._carbon.intensity

    def _connect(self, instance: Instance, listener: DecisionExecutor) -> WorkerPort:
        opened = self.ports if self.pools.owns(instance.id) else self.streams
        return opened.connect(instance, listener)

    def picker_at(self, access: Access | None) -> PickerListener:
        """Return the server for gateways, at no address yet; `use_pools` gives it one.

        Args:
            access: Who may call what; None: everybody everything.
        """
        serve = partial(
            picker,
            engine=self.engine,
            pools=self.pools,
            ports=self.ports,
            follower=self.follower,
            profiles=self.profiles,
            intensity=self.intensity,
            access=access,
            clock=self._clock,
            grace_s=_GRACE_S,
        )
        self._picker = PickerListener(serve)
        return self._picker

    def found(self, model: str, pool: str, addresses: tuple[str, ...]) -> None:
        """Take the addresses of a pool."""
        if self.pools.found(model, pool, addresses):
            self.engine.swap(self.pools.merged(self._planned))

    async def use_pools(self, deployment: Deployment) -> None:
        """Take over the pools of servers of others, where this router is a gateway's picker.

        Raises:
            ServiceError: They cannot be followed, or the gateways' address cannot be bound; nothing
                has changed.
        """
        if self._picker is None or not self.follower.entered:
            return
        if not deployment.router.picker_listen:
            deployment = deployment.model_copy(update={"models": {}})
        await self._picker.use(deployment, self._follow_pools)

    async def _follow_pools(self, deployment: Deployment) -> None:
        await asyncio.to_thread(self.profiles.use, deployment.models)
        await self.follower.use(deployment)
        self.engine.swap(self.pools.merged(self._planned))

    def _account(self, routes: ModelRoutes) -> Account:
        return Account(routes, self._carbon.intensity, self._settings.slo_windows_s, self._watchers)

    def _predictor_client(self, deployment: Deployment) -> PredictorClient | None:
        if deployment.predictor is None:
            return None
        address = deployment.predictor.dial

        def count(model: str, source: str, took_s: float) -> None:
            self.engine.accounts[model].stats.predictions[source].add(took_s)

        identity, expected = deployment.identity("router"), deployment.expected("predictor")
        return PredictorClient(lambda: dial(address, identity, expected), self._clock, count)

    def metrics(self) -> CollectorRegistry:
        """Return the registry that Prometheus scrapes."""
        accounts = self.engine.accounts
        overloads = self.engine.registry.overloads
        return collectors_registry(RouterCollector(accounts, self._clock, overloads))

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicers."""
        add_inference(self.inference, server)
        status = RouterServicer(
            self.engine, self._watchers, self._id, self._started_at, self.config, self._clock
        )
        add_RouterServiceServicer_to_server(status, server)

    async def reload(self, deployment: Deployment) -> None:
        """Apply the limits to new models; routes and objectives come from the planner."""
        self.engine.registry.limits.update(limits(deployment))
        await self.use_pools(deployment)
        self.config.own = deployment.digest

    async def work(
        self,
        server: Serving,
        planner: grpc.aio.Channel,
        carbon: grpc.aio.Channel,
        stop: asyncio.Event,
    ) -> None:
        """Follow planner and carbon until `stop`, then drain; a task that crashes ends all."""
        clock, interval_s = self._clock, self._settings.report_interval_s
        heard = Heard(self._note, self.engine.release, self.regions.use)
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(work, name=f"router.{name}")
                for name, work in (
                    ("routes", watch_routes(planner, self._use, heard, self.config, clock)),
                    (
                        "load",
                        report_load(planner, self._report, self._report_due, interval_s, clock),
                    ),
                    ("carbon", self._carbon.follow(carbon, clock)),
                    ("health", self._report_ready(server)),
                    ("regions", self.regions.keep()),
                    ("regions.waiting", self.engine.send_away()),
                )
            ]
            if self._file is not None:
                await self._restore(self._file)
                background.append(tasks.create_task(self._file.keep(), name="router.routing_file"))
            if self._predictor is not None:
                background.append(tasks.create_task(self._predictor.run(), name="router.lengths"))
            await stop.wait()
            await server.set_ready(ready=False)
            await self.engine.drain(self._settings.default_timeout_s)
            for task in background:
                task.cancel()

    async def _restore(self, file: RoutingFile) -> None:
        """Use the saved routing table, unless a planner has sent one meanwhile."""
        table = await asyncio.to_thread(file.read)
        if table is None or self._planned.revision:
            return
        known = {routes.model for routes in table.models}
        new = (each for each in self._planned.models if each.model not in known)
        self._swap(replace(table, models=(*table.models, *new)))
        self._routed.set()
        _log.info("serving by the last routing table", plan=table.plan_version)

    def _use(self, table: RoutingTable, planned: bool) -> None:
        """Use a table, unless the one in use supersedes it; acknowledge it at once."""
        known = self._planned
        if not table.supersedes(known, planned=planned):
            _log.warning("a routing table is refused", term=table.term, revision=table.revision)
            return
        if table != known:
            self._swap(table)
            if self._file is not None:
                self._file.put(table)
        self._routed.set()
        self._report_due.set()

    def _swap(self, table: RoutingTable) -> None:
        """Use a table of the planner's, with the servers of pools."""
        self._planned = table
        self.engine.swap(self.pools.merged(table))

    def _note(self, readiness: Readiness) -> None:
        self.engine.registry.readiness = readiness
        self._heard.set()
        if readiness.stopped:
            self._routed.set()

    def _report(self) -> planner_pb2.ReportLoadRequest:
        now_s = self._clock.monotonic()
        window_s, self._reported_s = now_s - self._reported_s, now_s
        report = to_report(self.engine, self._id, window_s)
        self.regions.fill(report)
        return report

    async def _report_ready(self, server: Serving) -> None:
        """Report SERVING once routes are known, or the planner has none: requests are answered so.

        A router that waited for the first machine would hold up the rollout of all routers.
        """
        hearing = asyncio.create_task(self._heard.wait(), name="router.heard")
        routed = asyncio.create_task(self._routed.wait(), name="router.routed")
        try:
            await asyncio.wait((hearing, routed), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((routed,), timeout=_FIRST_PLAN_S)
        finally:
            hearing.cancel()
            routed.cancel()
        await server.set_ready(ready=True)

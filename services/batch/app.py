"""Wiring and lifetimes of the batch service."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from cinquefoil.batch.v1.batch_pb2 import DESCRIPTOR
from cinquefoil.batch.v1.batch_pb2_grpc import add_BatchServiceServicer_to_server
from services.batch.adapters.contents import Contents
from services.batch.adapters.planner_client import Exchange, exchange
from services.batch.adapters.prometheus import BatchCollector
from services.batch.adapters.router_client import RouterClient
from services.batch.adapters.store import Store
from services.batch.core.releases import Releases
from services.batch.edge.app import edge
from services.batch.runtime.desk import Desk
from services.batch.runtime.runner import Parts, Runner
from services.batch.servicer import BatchServicer
from services.kit.clock import RealClock
from services.kit.config import Deployment
from services.kit.config.loader import ConfigError, Mistake, config_path
from services.kit.http.client import HttpClient
from services.kit.process import metrics, systemd
from services.kit.process.reload import Reloads
from services.kit.rpc import Access, HealthServicer, Limits, dial, serving

_SERVICE: Final = DESCRIPTOR.services_by_name["BatchService"].full_name
_USED: Final = (
    "batch*",
    "planner.listen",
    "planner.address",
    "router.http_listen",
    "router.max_request_bytes",
    "tls*",
    "access*",
)
_GRACE_S: Final = 5.0
_MIB: Final = 2**20
_MAX_MESSAGE_BYTES: Final = 4 * _MIB


async def run(
    deployment: Deployment,
    stop: asyncio.Event,
    started: Callable[[int], None] | None = None,
    *,
    reloads: Reloads | None = None,
) -> None:
    """Take and run batches until `stop` is set; then answers that are awaited have 5 s to come.

    Args:
        deployment: The deployment file.
        stop: Ends the service when set.
        started: Called with the port of gRPC once the service listens.
        reloads: Learns which settings need a restart.

    Raises:
        ConfigError: The deployment has no batch service, or no HTTP address of the router.
        FailedPrecondition: Another service has its SQLite file.
        Unavailable: The database cannot be reached.
    """
    settings = deployment.batch
    if settings is None:
        missing = Mistake("batch", 0, "required by this service, but missing")
        raise ConfigError(config_path(), [missing])
    if not (settings.router_url or deployment.router.http_listen):
        missing = Mistake("batch.router_url", 0, "needed where router.http_listen is empty")
        raise ConfigError(config_path(), [missing])
    if reloads is not None:
        reloads.serve(_USED)
    tls, access, clock = deployment.identity("batch"), Access.of(deployment), RealClock()
    health = HealthServicer(systemd.ready)
    contents = Contents(str(settings.files), int(settings.min_free_mib * _MIB))
    await contents.prepare()
    async with AsyncExitStack() as held:
        store = await held.enter_async_context(Store.opened(settings.database, clock))
        http = await held.enter_async_context(
            HttpClient.connected(
                settings.router_url or deployment.router.http_listen,
                tls,
                deployment.expected("router"),
                settings.max_in_flight,
            )
        )
        router = RouterClient(http, deployment.router.worker_message_bytes)
        most = deployment.router.max_request_bytes
        parts = Parts(store, contents, router, clock, settings, most, Releases())
        runner = Runner(parts)
        desk = Desk(parts, runner)
        servicer = BatchServicer(desk)
        await held.enter_async_context(
            metrics.exposed(
                settings.metrics,
                [BatchCollector(lambda: runner.open, lambda: runner.in_flight)],
                service="batch",
                tls=tls,
                access=access,
                ready=lambda: health.ready,
            )
        )
        planner = await held.enter_async_context(
            dial(deployment.planner.dials, tls, deployment.expected("planner"))
        )
        running = asyncio.create_task(runner.run(stop, _GRACE_S), name="batch.run")
        held.push_async_callback(lambda: running)
        name = f"{socket.gethostname()}-{store.holder}"
        exchanging = asyncio.create_task(
            exchange(planner, Exchange(name, runner.waiting, runner.reported, desk.hear), clock),
            name="batch.planner",
        )
        held.callback(exchanging.cancel)
        await held.enter_async_context(
            edge(settings, desk, tls=tls, access=access, grace_s=_GRACE_S)
        )
        server = await held.enter_async_context(
            serving(
                settings.listen,
                lambda server: add_BatchServiceServicer_to_server(servicer, server),
                (_SERVICE,),
                tls=tls,
                access=access,
                grace_s=_GRACE_S,
                limits=Limits(
                    message_bytes=_MAX_MESSAGE_BYTES, streams=settings.max_connection_requests
                ),
                probes=settings.health,
                health_servicer=health,
            )
        )
        if started is not None:
            started(server.port)
        stopping = asyncio.create_task(stop.wait(), name="batch.stop")
        both = {running, exchanging, stopping}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for each in (running, exchanging):
            if each.done():
                each.result()

"""The router's third address: there Envoy learns which server takes a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from envoy_ext_proc.ext_proc_pb2_grpc import add_ExternalProcessorServicer_to_server
from services.kit.clock import Clock
from services.kit.config import Deployment
from services.kit.rpc import Access, Limits, Serving, serving
from services.kit.units import BYTES_PER_MIB
from services.router.adapters.server_port import ServerPorts
from services.router.core.accounting.receipts import Answer, Intensity
from services.router.core.server_pools import ServerPools
from services.router.frontend.messages import transport_limit
from services.router.picker.parts import PickerParts
from services.router.picker.pool_follower import PoolFollower
from services.router.picker.servicer import (
    EXTERNAL_PROCESSOR,
    PickerServicer,
    Profiles,
    names,
)
from services.router.runtime.engine import Engine


@asynccontextmanager
async def picker(  # noqa: PLR0913 - one value per collaborator of the composition root
    deployment: Deployment,
    engine: Engine,
    pools: ServerPools,
    ports: ServerPorts,
    *,
    follower: PoolFollower,
    profiles: Profiles,
    intensity: Intensity,
    access: Access | None,
    clock: Clock,
    grace_s: float,
) -> AsyncIterator[None]:
    """Serve at `router.picker_listen` while the block runs.

    Args:
        deployment: The whole file.
        engine: Chooses.
        pools: The servers.
        ports: Their ports.
        follower: Follows them.
        profiles: Costs of their answers.
        intensity: Carbon intensity of a zone.
        access: Who may call what; None: everybody everything.
        clock: Time.
        grace_s: Time that streams in progress have to end, s.
    """
    settings = deployment.router
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())

        def spawn(work: Coroutine[Any, Any, Answer | None]) -> asyncio.Task[Answer | None]:
            return tasks.create_task(work)

        parts = PickerParts(
            engine,
            pools,
            ports,
            clock,
            settings.max_request_bytes,
            int(settings.max_queue_mib * BYTES_PER_MIB),
            profiles.cost,
            profiles.expected,
            intensity,
            spawn,
            names(),
        )
        server = await stack.enter_async_context(
            serving(
                settings.picker_listen,
                partial(add_ExternalProcessorServicer_to_server, PickerServicer(parts)),
                (EXTERNAL_PROCESSOR,),
                tls=deployment.identity("router"),
                access=access,
                grace_s=grace_s,
                ready=False,
                limits=Limits(
                    message_bytes=transport_limit(settings.max_request_bytes),
                    connections=settings.max_connections,
                    streams=settings.picker_connection_requests,
                    calls=settings.max_requests,
                ),
                shared_port=settings.processes > 1,
                transport=deployment.rpc.transport,
            )
        )
        ready = tasks.create_task(_report_ready(server, pools, follower.changed))
        yield
        ready.cancel()


async def _report_ready(server: Serving, pools: ServerPools, changed: asyncio.Event) -> None:
    """Report SERVING once the servers of every pool were looked for: there may be none yet."""
    while not pools.looked:
        changed.clear()
        await changed.wait()
    await server.set_ready(ready=True)

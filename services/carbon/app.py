"""Wiring and lifetimes of the carbon service."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cinquefoil.carbon.v1.carbon_pb2 import DESCRIPTOR
from cinquefoil.carbon.v1.carbon_pb2_grpc import add_CarbonServiceServicer_to_server
from services.carbon.adapters.mqtt import broker_loops
from services.carbon.core.monitor import Monitor
from services.carbon.core.sources.source import Source
from services.carbon.runtime.grid_state import GridState, update_zone
from services.carbon.runtime.live_sources import Ingestion, LiveFeed, live_feeds
from services.carbon.runtime.metrics import IntensityCollector
from services.carbon.servicer import CarbonServicer
from services.carbon.sources.factory import build
from services.carbon.sources.live.client import http_client
from services.kit.clock import Clock, RealClock, ScaledClock
from services.kit.config import Carbon, Deployment
from services.kit.process import metrics, systemd
from services.kit.process.reload import Reloads
from services.kit.rpc import Access, HealthServicer, Limits, Serving, serving

_USED = ("carbon.*", "mqtt*", "tls*", "access*")
_MAX_MESSAGE_BYTES = 64 * 2**10
_SERVICE = DESCRIPTOR.services_by_name["CarbonService"].full_name


async def run(
    deployment: Deployment,
    stop: asyncio.Event,
    started: Callable[[int], None] | None = None,
    clock: Clock | None = None,
    *,
    reloads: Reloads | None = None,
) -> None:
    """Serve carbon intensities until `stop` is set, then end every watch and drain.

    Args:
        deployment: The deployment file.
        stop: Ends the service when set.
        started: Called with the port once the service listens. Health reports SERVING when every
            zone has a value.
        clock: Grid time; None: as in the deployment file.
        reloads: Learns which settings need a restart.

    Raises:
        ConfigError: A trace file or a key cannot be used.
    """
    if reloads is not None:
        reloads.serve(_USED)
    settings = deployment.carbon
    tls, access = deployment.identity("carbon"), Access.of(deployment)
    now = datetime.now(UTC) if clock is None else clock.now()
    start, sources = await asyncio.to_thread(build, settings, now)
    clock = clock or _clock(settings, start)
    health = HealthServicer(systemd.ready)
    async with http_client() as client:
        live = await asyncio.to_thread(lambda: tuple(live_feeds(settings, sources, client, start)))
        monitors = await asyncio.to_thread(_monitors, settings, sources, clock.now())
        state = GridState(monitors)
        servicer = CarbonServicer(state, clock)
        async with (
            metrics.exposed(
                settings.metrics,
                [IntensityCollector(state, clock)],
                service="carbon",
                tls=tls,
                access=access,
                ready=lambda: health.ready,
            ),
            serving(
                settings.listen,
                lambda server: add_CarbonServiceServicer_to_server(servicer, server),
                (_SERVICE,),
                tls=tls,
                access=access,
                limits=Limits(
                    message_bytes=_MAX_MESSAGE_BYTES, streams=settings.max_connection_requests
                ),
                ready=False,
                probes=settings.health,
                health_servicer=health,
            ) as server,
        ):
            if started is not None:
                started(server.port)
            loops = [
                *_loops(deployment, live, monitors, state, clock),
                ("carbon.ready", _report_ready(state, server)),
            ]
            try:
                await _run_until(stop, loops)
            finally:
                state.close()


def _clock(carbon: Carbon, start: datetime) -> Clock:
    """Return grid time; with a live zone it is the machine's, which may be set."""
    if any(zone.live for zone in carbon.zones.values()):
        return RealClock()
    return ScaledClock(start, carbon.replay.speedup)


def _monitors(carbon: Carbon, sources: Mapping[str, Source], now: datetime) -> dict[str, Monitor]:
    """Return a monitor for each zone that already knows its source's past."""
    monitors = {}
    for name, source in sources.items():
        zone = carbon.zones[name]
        window = timedelta(seconds=zone.average_window_s)
        monitors[name] = Monitor(name, source, now, signal=zone.signal, average_window=window)
    return monitors


def _loops(
    deployment: Deployment,
    live: Collection[LiveFeed],
    monitors: Mapping[str, Monitor],
    state: GridState,
    clock: Clock,
) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """Yield everything that runs in the background, each with a name for its task."""
    updated = {each.zone: asyncio.Event() for each in live}
    ingestions = [Ingestion(each, monitors[each.zone], updated[each.zone], clock) for each in live]
    for zone, monitor in monitors.items():
        yield f"carbon.update[{zone}]", update_zone(monitor, state, clock, updated.get(zone))
    for each in ingestions:
        if each.live.provider is not None:
            name = f"carbon.poll[{each.live.zone}:{each.live.feed.name}]"
            yield name, each.poll(each.live.provider)
    yield from broker_loops(deployment, state, ingestions, clock)


async def _run_until(
    stop: asyncio.Event, loops: Iterable[tuple[str, Coroutine[Any, Any, None]]]
) -> None:
    """Run the loops until `stop`; one that crashes ends the service."""
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(loop, name=name) for name, loop in loops]
        await stop.wait()
        for task in background:
            task.cancel()


async def _report_ready(state: GridState, server: Serving) -> None:
    await state.complete()
    await server.set_ready(ready=True)

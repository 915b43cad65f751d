"""How the carbon service is wired, and how long each part lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx

from cinquefoil.carbon.v1.carbon_pb2 import DESCRIPTOR
from cinquefoil.carbon.v1.carbon_pb2_grpc import add_CarbonServiceServicer_to_server
from services.carbon.adapters.mqtt import conversation, spoken
from services.carbon.core.monitor import Monitor
from services.carbon.core.sources.source import Source
from services.carbon.runtime.grid_state import GridState
from services.carbon.runtime.live_sources import Live, live_sources, polls
from services.carbon.runtime.metrics import IntensityCollector
from services.carbon.runtime.zone_updates import follow
from services.carbon.servicer import CarbonServicer
from services.carbon.sources.factory import build
from services.kit.clock import Clock, RealClock, ScaledClock
from services.kit.config import Carbon, Deployment
from services.kit.rpc import Serving, serving
from services.kit.telemetry import metrics

_SERVICE = DESCRIPTOR.services_by_name["CarbonService"].full_name


@dataclass(frozen=True, slots=True)
class _Zones:
    """What is followed. Attributes: deployment, monitors (by zone), live (live sources)."""

    deployment: Deployment
    monitors: Mapping[str, Monitor]
    live: tuple[Live, ...]


async def run(
    deployment: Deployment,
    stop: asyncio.Event,
    started: Callable[[int], None] | None = None,
    clock: Clock | None = None,
) -> None:
    """Tell what electricity is worth until `stop` is set, then end every watch and drain.

    Args:
        deployment: The whole deployment file.
        stop: Ends the service.
        started: Called with the port once the service listens. Health says SERVING when every
            source has given a value.
        clock: Grid time; None: as the deployment file says.

    Raises:
        ConfigError: A trace file, or a key, cannot be used.
    """
    settings = deployment.carbon
    now = datetime.now(UTC) if clock is None else clock.now()
    start, sources = await asyncio.to_thread(build, settings, now)
    clock = clock or _clock(settings, start)
    async with httpx.AsyncClient() as client:
        live = await asyncio.to_thread(live_sources, settings, sources, client, start)
        monitors = await asyncio.to_thread(_monitors, settings, sources, clock.now())
        state = GridState(monitors)
        servicer = CarbonServicer(state, clock)
        with metrics.exposed(settings.metrics, [IntensityCollector(state, clock)]):
            async with serving(
                settings.listen,
                lambda server: add_CarbonServiceServicer_to_server(servicer, server),
                (_SERVICE,),
                tls=deployment.tls,
                ready=False,
            ) as server:
                if started is not None:
                    started(server.port)
                try:
                    await _work(_Zones(deployment, monitors, live), state, clock, server, stop)
                finally:
                    state.close()


def _clock(carbon: Carbon, start: datetime) -> Clock:
    """Return grid time; where a zone is live, the machine's, which may be set."""
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


async def _work(
    zones: _Zones,
    state: GridState,
    clock: Clock,
    server: Serving,
    stop: asyncio.Event,
) -> None:
    """Follow every zone until `stop`; a follower that crashes ends the service."""
    heard = {each.zone: asyncio.Event() for each in zones.live}
    loops = [
        (f"carbon.follow[{zone}]", follow(monitor, state, clock, heard.get(zone)))
        for zone, monitor in zones.monitors.items()
    ]
    loops += polls(zones.live, zones.monitors, heard, clock)
    by_topic = spoken(zones.live, zones.monitors, heard, clock)
    loops += conversation(zones.deployment, state, by_topic, clock)
    loops.append(("carbon.ready", _report_ready(state, server)))
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(loop, name=name) for name, loop in loops]
        await stop.wait()
        for task in background:
            task.cancel()


async def _report_ready(state: GridState, server: Serving) -> None:
    await state.complete()
    await server.set_ready(ready=True)

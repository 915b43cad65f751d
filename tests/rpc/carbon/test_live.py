"""The carbon service with a real provider at the other end: outages, returns, restarts."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import stamina

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from services.carbon.app import run
from services.kit.clock import Clock, RealClock, ScaledClock
from services.kit.config import Triggers
from services.kit.net import free_port
from services.kit.rpc import dial
from services.planner.adapters import carbon_client
from services.planner.change_event import ChangeEvent
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.grid_signal import GridSignal
from services.planner.core.triggers import Observation, cause
from tests.support.fake_provider import Answer, HttpRequest, ProviderServer, serving_http

if TYPE_CHECKING:
    from pathlib import Path

    from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceAsyncStub
    from services.kit.config import Deployment
    from tests.conftest import Deploy

START = datetime(2024, 3, 6, 12, tzinfo=UTC)
HALF_HOUR, HOUR = timedelta(minutes=30), timedelta(hours=1)
SPEEDUP = 3600.0  # an hour of grid time per second
POLL_S = 300.0
FLAT = {"source": {"kind": "static", "intensity_gco2e_per_kwh": 100.0}}


class Neso:
    """Half hours up to the present; each holds its hour as its value. `up` may be unset."""

    def __init__(self, clock: Clock) -> None:
        self.up = True
        self._clock = clock

    def __call__(self, request: HttpRequest) -> Answer:
        if not self.up:
            return Answer(status=503)
        now = self._clock.now()
        since, data = now - HOUR * 24, []
        since = since.replace(minute=since.minute // 30 * 30, second=0, microsecond=0)
        while since <= now:
            value = {"forecast": 1, "actual": 100 + since.hour}
            data.append({"from": f"{since:%Y-%m-%dT%H:%MZ}", "to": "", "intensity": value})
            since += HALF_HOUR
        return Answer(json.dumps({"data": data}))


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Retries wait in real time, in which an hour of the grid passes within a second."""
    with stamina.set_testing(True, attempts=3):
        yield


@pytest.fixture
async def provider() -> AsyncIterator[tuple[ProviderServer, Neso, ScaledClock]]:
    """The provider's server, what it says, and its clock."""
    clock = ScaledClock(START, SPEEDUP)
    neso = Neso(clock)
    async with serving_http(neso) as server:
        yield server, neso, clock


def settings(server: ProviderServer, **more: Any) -> dict[str, Any]:
    live = {"kind": "neso", "url": server.url, "poll_s": POLL_S, "fresh_s": 3600}
    guess = {"kind": "static", "intensity_gco2e_per_kwh": 400.0}
    zone = {"source": [live, guess], "hold_s": 3600}
    return {"carbon": {"zones": {"US-CAL": zone, "FLAT": FLAT}, **more}}


@asynccontextmanager
async def carbon(
    deployment: Deployment, clock: Clock | None
) -> AsyncIterator[CarbonServiceAsyncStub]:
    stop, ports = asyncio.Event(), asyncio.Queue[int]()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run(deployment, stop, ports.put_nowait, clock), name="carbon")
        try:
            async with dial(f"127.0.0.1:{await ports.get()}") as channel:
                yield CarbonServiceStub(channel)
        finally:
            stop.set()


async def intensity(stub: CarbonServiceAsyncStub) -> pb.Intensity:
    reply = await stub.GetIntensity(pb.GetIntensityRequest(zone="US-CAL"))
    return reply.intensity


async def until(
    stub: CarbonServiceAsyncStub, holds: Callable[[pb.Intensity], bool]
) -> pb.Intensity:
    """Watch the zone until its value is as wanted."""
    watch = stub.Watch(pb.WatchRequest(zones=["US-CAL"]), timeout=30)
    async for message in watch:
        for value in message.intensities:
            if holds(value):
                watch.cancel()
                return value
    raise AssertionError("the watch ended")


def seen(state: ClusterState) -> Observation:
    intensities = dict(state.intensity_gco2e_per_kwh)
    return Observation(intensities, {}, {}, frozenset(), 0.5, strategy="exact")


async def test_an_hour_without_any_source_and_after(
    provider: tuple[ProviderServer, Neso, ScaledClock], deployment: Deploy
) -> None:
    """Answers keep coming, with their age and provenance; a return shows after one poll.

    The planner's view beside it: it plans all the time, and knows how old its knowledge is.
    """
    server, neso, clock = provider
    port = free_port()
    made = deployment(settings(server, metrics=f"127.0.0.1:{port}"))
    planner = ClusterState.of(made, (), RealClock(), ChangeEvent())
    planner.signal = GridSignal(speedup=SPEEDUP)
    async with carbon(made, clock) as stub, asyncio.TaskGroup() as tasks:
        follower = tasks.create_task(
            carbon_client.follow(
                stub, frozenset({"US-CAL"}), made.planner.horizon, planner, RealClock()
            )
        )
        fresh = await until(stub, lambda value: value.provenance == pb.PROVENANCE_MEASURED)
        neso.up = False
        down = clock.now()
        held = await until(stub, lambda value: value.provenance == pb.PROVENANCE_HELD)
        page = await asyncio.to_thread(scrape, port)
        planned = seen(planner)
        old_s = planner.signal.staleness_s(time.monotonic())["US-CAL"]
        assumed = await until(stub, lambda value: value.provenance == pb.PROVENANCE_ASSUMED)
        later = seen(planner)
        assert clock.now() - down >= HOUR
        neso.up, before = True, len(server.requests)
        back = await until(stub, lambda value: value.provenance == pb.PROVENANCE_MEASURED)
        polls = len(server.requests) - before
        history = await stub.GetHistory(pb.GetHistoryRequest(zone="US-CAL"))
        follower.cancel()

    assert fresh.source == held.source == "neso"
    assert held.staleness.ToTimedelta() >= HOUR
    assert old_s >= 3600
    assert planned.intensity_gco2e_per_kwh == {"US-CAL": held.intensity_gco2e_per_kwh}
    assert cause(planned, later, Triggers()) is not None  # the assumption is a new input
    assert (assumed.intensity_gco2e_per_kwh, assumed.source) == (400.0, "static")
    assert assumed.staleness.ToTimedelta() >= 2 * HOUR
    assert back.source == "neso"
    assert polls <= 3  # one poll, which may try three times
    assert 'cinquefoil_carbon_source_up{source="neso",zone="US-CAL"} 0.0' in page
    assert 'provenance="held",source="neso",zone="US-CAL"} 1.0' in page
    provenances = {item.provenance for item in history.intensities}
    assert provenances == {pb.PROVENANCE_MEASURED}  # what was missed has come in since
    average = sum(item.intensity_gco2e_per_kwh for item in history.intensities[-49:-1]) / 48
    assert back.average_gco2e_per_kwh == pytest.approx(average, rel=0.05)


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        return str(reply.read(), "utf-8")


async def kept_file(made: Deployment) -> Path:
    """Return the file that keeps what was published, once it is there; no event announces it."""
    while not (kept := list(made.carbon.cache_dir.glob("US-CAL.*.json"))):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return kept[0]


async def test_a_restart_queries_no_provider_before_it_is_time(
    provider: tuple[ProviderServer, Neso, ScaledClock], deployment: Deploy
) -> None:
    """History and value are there at once, and without the provider."""
    server, neso, _ = provider
    made, clock = deployment(settings(server)), ScaledClock(START, 1.0)
    async with carbon(made, clock) as stub:
        first = await until(stub, lambda value: value.provenance == pb.PROVENANCE_MEASURED)
        await kept_file(made)
    neso.up, before = False, len(server.requests)
    async with carbon(made, clock) as stub:
        again = await intensity(stub)
        history = await stub.GetHistory(pb.GetHistoryRequest(zone="US-CAL"))

    assert len(server.requests) == before
    assert again.intensity_gco2e_per_kwh == first.intensity_gco2e_per_kwh
    assert again.average_gco2e_per_kwh == pytest.approx(first.average_gco2e_per_kwh)
    assert len(history.intensities) == 49


async def test_what_was_kept_may_be_broken(
    provider: tuple[ProviderServer, Neso, ScaledClock], deployment: Deploy
) -> None:
    """Half a file, as a full disk leaves it, counts for nothing: the provider is queried."""
    server, _, _ = provider
    made, clock = deployment(settings(server)), ScaledClock(START, 1.0)
    async with carbon(made, clock) as stub:
        await until(stub, lambda value: value.provenance == pb.PROVENANCE_MEASURED)
        kept = await kept_file(made)
    kept.write_bytes(kept.read_bytes()[:100])
    before = len(server.requests)
    async with carbon(made, clock) as stub:
        await until(stub, lambda value: value.provenance == pb.PROVENANCE_MEASURED)

    assert len(server.requests) > before


async def test_a_rank_is_not_published_as_a_mass(
    provider: tuple[ProviderServer, Neso, ScaledClock],
    deployment: Deploy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that does not look at the signal computes NaN, not something plausible."""
    monkeypatch.setenv("K", "password")
    server, _, _ = provider
    clock = ScaledClock(START, 1.0)
    point = {"point_time": START.isoformat(), "value": 62}
    body = {"token": "t", "data": [point], "meta": {"units": "percentile"}}
    server.route = lambda _: Answer(json.dumps(body))
    source = {
        "kind": "watttime", "url": server.url, "username": "ada", "region": "PJM", "key_env": "K",
        "signal_type": "signal_index",
    }  # fmt: skip
    zones = {"RANK": {"source": source, "signal": "percentile"}}
    async with carbon(deployment({"carbon": {"zones": zones}}), clock) as stub:
        watch = stub.Watch(pb.WatchRequest(zones=["RANK"]), timeout=20)
        found = [value async for value in first_value(watch)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetForecast(pb.GetForecastRequest(zone="RANK"))

    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert found[0].percentile == 62
    assert found[0].signal == pb.SIGNAL_PERCENTILE
    assert found[0].intensity_gco2e_per_kwh != found[0].intensity_gco2e_per_kwh
    assert found[0].ratio != found[0].ratio


async def first_value(watch: Any) -> AsyncIterator[pb.Intensity]:
    """Yield the first value that a watch brings."""
    async for message in watch:
        if message.intensities:
            yield message.intensities[0]
            watch.cancel()
            return

"""Every source of the grid's intensity is down for an hour and more: the suite keeps serving.

The services run in this process, with real workers; grid time passes an hour per second.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
import stamina
import yaml

from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.plan_pb2 import Plan
from inference import grpc_service_pb2 as oip
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.carbon import app as carbon
from services.cli.client import Clients, connected
from services.cli.status.document import Row
from services.cli.status.show import fetch
from services.gpuagent import app as gpuagent
from services.kit.clock import ScaledClock
from services.kit.config import Deployment
from services.kit.config.loader import load
from services.kit.net import free_port
from services.kit.rpc import dial
from services.local.demo import model_family
from services.local.up.health import until_answering
from services.planner import app as planner
from services.router import app as router
from tests.support.fake_provider import Answer, HttpRequest, ProviderServer, serving_http
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from inference.grpc_service_pb2_grpc import GRPCInferenceServiceAsyncStub

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

T = TypeVar("T")
START = datetime(2024, 3, 6, 12, tzinfo=UTC)
HALF_HOUR = timedelta(minutes=30)
HOUR_S = 3600.0
POLL_S = 600.0
MEASURED, ASSUMED = 100.0, 900.0


class Provider:
    """A provider with one value for every half hour up to now; `up` may be unset."""

    def __init__(self, clock: ScaledClock) -> None:
        self.up = True
        self._clock = clock

    def __call__(self, _: HttpRequest) -> Answer:
        if not self.up:
            return Answer(status=503)
        now, data = self._clock.now(), []
        for back in range(48):
            since = now - back * HALF_HOUR
            since = since.replace(minute=since.minute // 30 * 30)
            value = {"forecast": MEASURED, "actual": MEASURED}
            data.append({"from": f"{since:%Y-%m-%dT%H:%MZ}", "to": "", "intensity": value})
        return Answer(json.dumps({"data": data[::-1]}))


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Retries wait in real time, in which an hour of the grid passes within a second."""
    with stamina.set_testing(True, attempts=3):
        yield


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A network that is quickly trained."""
    file = tmp_path / "linear.onnx"
    file.write_bytes(model_family.build("linear"))
    return file


def settings(folder: Path, network: Path, url: str) -> Deployment:
    """The example deployment with a live zone whose stand-ins soon have to do.

    The same network is in all files: what a variant costs is its profile's.
    """
    data = yaml.safe_load((ROOT / "cinquefoil.yaml").read_text())
    live = {"kind": "neso", "url": url, "poll_s": POLL_S, "fresh_s": HOUR_S}
    guess = {"kind": "static", "intensity_gco2e_per_kwh": ASSUMED}
    zone = {"source": [live, guess], "hold_s": 3 * HOUR_S}
    listens = [f"127.0.0.1:{free_port()}" for _ in range(5)]
    data["carbon"] = {
        "zones": {"US-CAL": zone},
        "cache_dir": str(folder / "carbon"),
        "listen": listens[0],
        "metrics": listens[1],
    }
    data["planner"] = {
        "database": str(folder / "planner.sqlite3"),
        "listen": listens[2],
        "objective": {"carbon_weight": 0.05},
        "triggers": {"min_interval_s": 0.1, "settle_s": 0.1, "intensity_dwell_s": 0},
    }
    data["router"] = {"listen": listens[3]}
    data["nodes"]["node-0"] |= {"listen": listens[4], "state_dir": str(folder / "state")}
    digits = data["models"]["digits"]
    digits["demand_rps"] = 40
    for variant in digits["variants"].values():
        variant["file"] = str(network)
    file = folder / "cinquefoil.yaml"
    file.write_text(yaml.safe_dump(data))
    return load(file)


@asynccontextmanager
async def suite(deployment: Deployment, clock: ScaledClock) -> AsyncIterator[None]:
    """Run all services while the block runs."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(carbon.run(deployment, stop, clock=clock), name="carbon")
        for service in (planner, gpuagent, router):
            tasks.create_task(service.run(deployment, stop), name=service.__name__)
        try:
            yield
        finally:
            stop.set()


@asynccontextmanager
async def sending(deployment: Deployment) -> AsyncIterator[list[int]]:
    """Send a request every 50 ms while the block runs; any that fails, fails it."""
    tensor = oip.ModelInferRequest.InferInputTensor(name="image", datatype="FP32", shape=[1, 64])
    image = oip.ModelInferRequest(
        model_name="digits", inputs=[tensor], raw_input_contents=[bytes(4 * 64)]
    )
    answered = [0]

    async def send(stub: GRPCInferenceServiceAsyncStub) -> None:
        while True:
            await stub.ModelInfer(image, timeout=10)
            answered[0] += 1
            await asyncio.sleep(0.05)

    async with dial(deployment.router.dial) as channel, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(send(GRPCInferenceServiceStub(channel)), name="send")
        try:
            yield answered
        finally:
            task.cancel()


async def until(look: Callable[[], Awaitable[T]], true: Callable[[T], bool]) -> T:
    """Look again and again until it is as wanted."""
    async with asyncio.timeout(30):
        while True:
            seen = await look()
            if true(seen):
                return seen
            await asyncio.sleep(0.05)


def scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as reply:
        return str(reply.read(), "utf-8")


class Views:
    """The views of an operator."""

    def __init__(self, clients: Clients, deployment: Deployment) -> None:
        self._clients, self._deployment = clients, deployment

    async def zone(self) -> Row:
        zone: Row
        (zone,) = (await fetch(self._clients, self._deployment)).zones
        return zone

    async def plan(self) -> Plan:
        request = planner_pb2.GetPlanRequest()
        return (await self._clients.planner.GetPlan(request, timeout=5)).plan

    async def planned_for(self, intensity: float) -> Plan:
        return await until(
            self.plan, lambda plan: plan.inputs.intensity_gco2e_per_kwh["US-CAL"] == intensity
        )


async def test_serving_and_planning_go_on_while_every_source_is_down(
    tmp_path: Path, network: Path
) -> None:
    """Staleness is in status, metrics and plans; a source that returns is seen at the next poll."""
    clock = ScaledClock(START, HOUR_S)
    provider = Provider(clock)
    async with serving_http(provider) as server:
        deployment = settings(tmp_path, network, server.url)
        async with suite(deployment, clock), connected(deployment) as clients:
            await asyncio.wait_for(until_answering(deployment.router.dial), 90)
            async with sending(deployment) as answered:
                await outage(Views(clients, deployment), server, provider, clock)
    assert answered[0] > 20


async def outage(
    seen: Views, server: ProviderServer, provider: Provider, clock: ScaledClock
) -> None:
    before = await seen.planned_for(MEASURED)
    provider.up, down = False, clock.now()

    held = await until(seen.zone, lambda zone: zone.provenance == "held")
    page = await asyncio.to_thread(scrape, seen._deployment.carbon.metrics)
    blind = await seen.planned_for(ASSUMED)
    assumed = await seen.zone()

    assert clock.now() - down >= timedelta(hours=1)
    provider.up, before_count, up = True, len(server.requests), clock.now()
    back = await until(seen.zone, lambda zone: zone.provenance == "measured")
    questions = len(server.requests) - before_count
    polls_due = 1 + (clock.now() - up).total_seconds() / POLL_S  # 1, where nothing holds us up
    after = await seen.planned_for(MEASURED)

    assert before.inputs.staleness_s["US-CAL"] < HOUR_S
    assert held.staleness_s >= HOUR_S
    assert held.intensity_gco2e_per_kwh == MEASURED
    assert 'cinquefoil_carbon_source_up{source="neso",zone="US-CAL"} 0.0' in page
    assert 'provenance="held",source="neso",zone="US-CAL"} 1.0' in page
    assert "carbon: US-CAL 100.0 -> 900.0" in blind.reason
    assert blind.inputs.staleness_s["US-CAL"] >= 4 * HOUR_S
    assert (assumed.provenance, assumed.source) == ("assumed", "static")
    assert questions <= 3 * polls_due, "one question a poll, which may be put three times"
    assert back.source == "neso"
    assert back.staleness_s < HOUR_S
    assert after.version > blind.version > before.version
    assert after.inputs.staleness_s["US-CAL"] < HOUR_S

"""The services at a real broker, among foreign clients: topics that they write and read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.carbon import app as carbon_app
from services.kit import config
from services.kit.rpc import dial
from tests.conftest import Deploy
from tests.support import fake_agent
from tests.support.gpuagent import agent_service
from tests.support.mosquitto import Broker, brokering

if TYPE_CHECKING:
    from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceAsyncStub

LONGEST_S = 20.0


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with brokering(Broker(tmp_path)) as running:
        yield running


@asynccontextmanager
async def carbon(deployment: config.Deployment) -> AsyncIterator[CarbonServiceAsyncStub]:
    """Run the carbon service while the block runs."""
    stop, ports = asyncio.Event(), asyncio.Queue[int]()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(carbon_app.run(deployment, stop, ports.put_nowait), name="carbon")
        try:
            async with dial(f"127.0.0.1:{await ports.get()}") as channel:
                yield CarbonServiceStub(channel)
        finally:
            stop.set()


async def published(
    broker: Broker, topic: str, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Return the first record on a topic for which `holds`, as mosquitto_sub prints it."""
    async with asyncio.timeout(LONGEST_S), broker.subscribed(topic) as lines:
        async for line in lines:
            record: dict[str, Any] = json.loads(line.split(b" ", 2)[2])
            if holds(record):
                return record
    raise AssertionError("the subscription ended first")


async def intensity(
    stub: CarbonServiceAsyncStub, holds: Callable[[carbon_pb2.Intensity], bool]
) -> carbon_pb2.Intensity:
    """Return the first intensity of zone DE for which `holds`."""
    async with asyncio.timeout(LONGEST_S):
        call = stub.Watch(carbon_pb2.WatchRequest(zones=["DE"]))
        async for response in call:
            for each in response.intensities:
                if holds(each):
                    call.cancel()
                    return each
    raise AssertionError("the stream ended first")


# ---- carbon ------------------------------------------------------------------------------------


async def test_a_foreign_client_gets_every_change_of_a_zone(
    deployment: Deploy, broker: Broker
) -> None:
    synthetic = {"source": {"kind": "synthetic"}}
    replay = {"start": datetime(2022, 4, 8, tzinfo=UTC), "speedup": 10 * 1800}
    change = {"zones": {"CAL": synthetic}, "replay": replay}
    file = deployment({"carbon": change, "mqtt": {"broker": broker.address}})
    async with carbon(file):
        first = await published(broker, "cinquefoil/carbon/CAL", lambda _: True)
        later = await published(
            broker, "cinquefoil/carbon/CAL", lambda each: each["since"] != first["since"]
        )

    assert first["ratio"] == first["intensity_gco2e_per_kwh"] / first["average_gco2e_per_kwh"]
    assert later["since"] > first["since"]
    assert (later["schema"], later["signal"], later["unit"]) == (1, "average", "gCO2e/kWh")
    ahead = timedelta(seconds=sum(each["length_s"] for each in later["forecast"]["periods"]))
    assert timedelta(hours=6) <= ahead <= timedelta(hours=7)


async def test_a_zone_that_does_not_change_is_published_again_so_that_its_age_shows(
    deployment: Deploy, broker: Broker
) -> None:
    file = deployment({"mqtt": {"broker": broker.address, "refresh_s": 1}})
    async with carbon(file):
        young = await published(broker, "cinquefoil/carbon/US-CAL", lambda _: True)
        old = await published(
            broker,
            "cinquefoil/carbon/US-CAL",
            lambda each: each["staleness_s"] > young["staleness_s"],
        )

    assert old["since"] == young["since"]


def by_topic(broker: Broker, tmp_path: Path, **mqtt: Any) -> dict[str, Any]:
    source = {"kind": "mqtt", "topic": "grid/de", "poll_s": 1}
    return {
        "carbon": {"zones": {"DE": {"source": source}}, "cache_dir": str(tmp_path / "cache")},
        "mqtt": {"broker": broker.address, **mqtt},
    }


async def test_a_zone_follows_the_topic_that_somebody_publishes_on(
    deployment: Deploy, broker: Broker, tmp_path: Path
) -> None:
    """A bare number, an object with its time, and nonsense between them."""
    await broker.publish("grid/de", "250", retain=True)
    async with carbon(deployment(by_topic(broker, tmp_path))) as stub:
        first = await intensity(stub, lambda _: True)
        await broker.publish("grid/de", "a lot")
        now = datetime.now(UTC).isoformat()
        news = {"schema": 1, "intensity_gco2e_per_kwh": 310, "since": now}
        await broker.publish("grid/de", json.dumps(news))
        second = await intensity(stub, lambda each: each.intensity_gco2e_per_kwh == 310)

    assert first.intensity_gco2e_per_kwh == 250
    assert first.provenance == carbon_pb2.PROVENANCE_HELD, "its age is unknown"
    assert second.provenance == carbon_pb2.PROVENANCE_MEASURED
    assert second.source == "mqtt:grid/de"


async def test_a_topic_is_heard_again_when_its_broker_returns(
    deployment: Deploy, broker: Broker, tmp_path: Path
) -> None:
    async with carbon(deployment(by_topic(broker, tmp_path))) as stub:
        await published(broker, "cinquefoil/status/carbon", lambda each: each["online"])
        await broker.publish("grid/de", "250")
        await intensity(stub, lambda each: each.intensity_gco2e_per_kwh == 250)
        broker.kill()
        await broker.start()
        await published(broker, "cinquefoil/status/carbon", lambda each: each["online"])
        await broker.publish("grid/de", "270")

        await intensity(stub, lambda each: each.intensity_gco2e_per_kwh == 270)


# ---- planner and agents ------------------------------------------------------------------------


async def test_the_newest_plan_is_kept_for_later_subscribers(
    broker: Broker, tmp_path: Path
) -> None:
    async with fake_agent.carbon() as grid:
        file = fake_agent.deployment(tmp_path, grid.port)
        file = file.model_copy(update={"mqtt": config.Mqtt(broker=broker.address)})
        agent = fake_agent.Agent("node-a", ("GPU-1", "GPU-2"))
        async with fake_agent.planner(file) as stub, fake_agent.living(agent, stub):
            plan = await published(
                broker, "cinquefoil/plan", lambda each: each["state"] == "active"
            )
            by_grpc = (await fake_agent.active(stub, 1)).plan

    assert plan["version"] == by_grpc.version
    assert plan["reason"] == by_grpc.reason
    variants = plan["models"]["digits"]["variants"]
    assert sum(each["share"] for each in variants.values()) == pytest.approx(1)
    assert sum(each["segments"] for each in variants.values()) == len(by_grpc.segments)
    assert by_grpc.state == plan_pb2.PLAN_STATE_ACTIVE


async def test_grid_events_of_the_broker_count_where_they_may(
    broker: Broker, tmp_path: Path
) -> None:
    """Published as an order, then as its cancellation; what cannot be read changes nothing."""
    topic, end = "cinquefoil/grid/event", datetime.now(UTC) + timedelta(hours=1)
    order = {"event_id": "e", "site": "hall", "limit_w": 500, "end": end.isoformat()}
    request = planner_pb2.ListGridEventsRequest()
    async with fake_agent.carbon() as grid:
        file = fake_agent.deployment(tmp_path, grid.port).model_copy(
            update={
                "mqtt": config.Mqtt(broker=broker.address),
                "sites": {"hall": config.Site(nodes=("node-*",))},
                "grid": config.Grid(mqtt=True),
            }
        )
        async with fake_agent.planner(file) as stub, asyncio.timeout(LONGEST_S):
            while not (await stub.ListGridEvents(request)).events:
                await broker.publish(topic, '{"event_id": [7]}')
                await broker.publish(topic, json.dumps(order))
            found = await stub.ListGridEvents(request)
            assert (found.sites[0].limit_w, found.events[0].source) == (500, "mqtt")
            cancelled = {"event_id": "e", "status": "GRID_EVENT_STATUS_CANCELLED"}
            while (await stub.ListGridEvents(request)).events:
                await broker.publish(topic, json.dumps(cancelled))


async def test_a_measured_pue_prices_energy_and_routes(broker: Broker, tmp_path: Path) -> None:
    """The deployment file says 1.2; the agent reports that a meter says 1.7."""
    async with fake_agent.carbon() as grid:
        agent = _Metered("node-a", ("GPU-1", "GPU-2"))
        file = fake_agent.deployment(tmp_path, grid.port)
        async with fake_agent.planner(file) as stub, fake_agent.living(agent, stub):
            seen = await fake_agent.active(stub, 1)
            before = await stub.GetFleet(planner_pb2.GetFleetRequest())
            agent.meter(5.0)
            agent.meter(5.0)
            async with asyncio.timeout(LONGEST_S):
                while True:
                    after = await stub.GetFleet(planner_pb2.GetFleetRequest())
                    spent_j = after.energy_j - before.energy_j
                    if spent_j >= 2 * 5.0:
                        break
                    await asyncio.sleep(0.02)

    spent_gco2e = after.carbon_gco2e - before.carbon_gco2e
    assert spent_gco2e == pytest.approx(spent_j / 3.6e6 * 100 * 1.7)
    assert {each.pue for model in seen.routing.models for each in model.instances} == {1.7}


async def test_a_node_with_a_pue_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async with fake_agent.carbon() as grid:
        agent = _Metered("node-a", ("GPU-1",), measured_pue=0.4)
        file = fake_agent.deployment(tmp_path, grid.port)
        async with fake_agent.planner(file) as stub:
            agent.say()
            with pytest.raises(grpc.aio.AioRpcError, match=r"node\.pue: must be within 1\.\.3"):
                await _first_error(agent.live(stub))


class _Metered(fake_agent.Agent):
    """An agent whose node has a meter at the wall."""

    measured_pue: float

    def __init__(self, node: str, gpus: tuple[str, ...], *, measured_pue: float = 1.7) -> None:
        self.measured_pue = measured_pue
        super().__init__(node, gpus)

    def report(self) -> Any:
        message = super().report()
        message.pue = self.measured_pue
        return message


async def _first_error(work: Any) -> None:
    """Await `work`; raise the error that a group of one carries."""
    try:
        await work
    except* grpc.aio.AioRpcError as errors:
        raise errors.exceptions[0] from None


async def test_an_agent_measures_pue_with_a_meter_at_the_wall(
    broker: Broker, tmp_path: Path
) -> None:
    """Simulated GPUs that idle, and a meter at the wall that reads half as much again."""
    power = config.PowerMeters(window_s=10, stale_after_s=3)
    async with agent_service.planning() as (planner, port):
        file = agent_service.deployment(tmp_path, tmp_path / "m.onnx", f"127.0.0.1:{port}")
        mqtt = config.Mqtt(broker=broker.address, power=power)
        file = file.model_copy(update={"mqtt": mqtt})
        async with agent_service.agent(file):
            await planner.until(lambda: len(planner.energy) == 2)
            assert not planner.node.HasField("pue")
            idle_w = sum(each.power_w for each in planner.energy.values())
            meter = asyncio.create_task(_meter(broker, 1.5 * idle_w), name="meter")
            await planner.until(lambda: planner.node.HasField("pue"))
            measured = planner.node.pue
            meter.cancel()
            await planner.until(lambda: not planner.node.HasField("pue"))

    assert measured == pytest.approx(1.5, abs=0.25)  # simulated power moves, too


async def _meter(broker: Broker, power_w: float) -> None:
    while True:
        await broker.publish(
            f"cinquefoil/power/{agent_service.NODE}", json.dumps({"power_w": power_w})
        )
        await asyncio.sleep(0.5)

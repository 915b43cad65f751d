"""The carbon service over the wire, as its composition root wires it."""

from __future__ import annotations

import asyncio
import os
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from services.carbon.app import run
from services.carbon.sources.csv_trace import read_trace
from services.kit.net import free_port
from services.kit.rpc import dial
from tests.support.paths import MADE_UP, PUBLISHED

if TYPE_CHECKING:
    from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceAsyncStub
    from services.kit.config import Deployment
    from tests.conftest import Deploy

START = datetime(2022, 4, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)
HALF_HOURS_PER_S = 20
FAST = {"start": START, "speedup": HALF_HOURS_PER_S * 1800}
STATIC = {"source": {"kind": "static", "intensity_gco2e_per_kwh": 605.59}, "signal": "marginal"}
SYNTHETIC = {"source": {"kind": "synthetic", "seed": 3}}
CALIFORNIA = (PUBLISHED / "carbon_intensity/lca/US-CAL-CISO.csv").resolve()
RECORDED = [
    pytest.param(MADE_UP / "carbon_by_hour.csv", id="made up"),
    pytest.param(
        CALIFORNIA,
        id="published",
        marks=pytest.mark.skipif(not CALIFORNIA.exists(), reason="no traces beside the clone"),
    ),
]


@dataclass(frozen=True)
class Carbon:
    """A running service. Attributes: stub, health, stop (ends it)."""

    stub: CarbonServiceAsyncStub
    health: Any
    stop: asyncio.Event


@asynccontextmanager
async def carbon(deployment: Deployment) -> AsyncIterator[Carbon]:
    """Run the service while the block runs; its drain must succeed."""
    stop, ports = asyncio.Event(), asyncio.Queue[int]()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run(deployment, stop, ports.put_nowait), name="carbon")
        try:
            async with dial(f"127.0.0.1:{await ports.get()}") as channel:
                health = health_pb2_grpc.HealthStub(channel)
                yield Carbon(CarbonServiceStub(channel), health, stop)
        finally:
            stop.set()


@pytest.fixture
async def two_zones(deployment: Deploy) -> AsyncIterator[Carbon]:
    """A static zone, and a synthetic one that changes twenty times a second."""
    async with carbon(deployment(zones(NSW=STATIC, CAL=SYNTHETIC, replay=FAST))) as service:
        yield service


def zones(replay: Mapping[str, Any] | None = None, **zones: Mapping[str, Any]) -> dict[str, Any]:
    """Return the change that adds `zones` to the minimal deployment's static US-CAL."""
    return {"carbon": {"zones": zones, "replay": dict(replay or {})}}


def stamp(when: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(when)
    return message


def when(intensity: pb.Intensity) -> datetime:
    return intensity.since.ToDatetime(tzinfo=UTC)


def details(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """Return the google.rpc details of an error by message name."""
    status = rpc_status.from_call(cast(grpc.Call, error))
    assert status is not None
    found = {}
    for packed in status.details:
        kind = packed.TypeName().rpartition(".")[2]
        found[kind] = getattr(error_details_pb2, kind)()
        packed.Unpack(found[kind])
    return found


async def health_of(service: Carbon) -> int:
    reply = await service.health.Check(health_pb2.HealthCheckRequest())
    status: int = reply.status
    return status


async def test_zones_are_listed_in_alphabetical_order(two_zones: Carbon) -> None:
    reply = await two_zones.stub.ListZones(pb.ListZonesRequest())

    assert list(reply.zones) == ["CAL", "NSW", "US-CAL"]


async def test_a_static_zone_says_what_it_is_and_since_when(two_zones: Carbon) -> None:
    reply = await two_zones.stub.GetIntensity(pb.GetIntensityRequest(zone="NSW"))
    intensity = reply.intensity

    assert intensity.intensity_gco2e_per_kwh == intensity.average_gco2e_per_kwh == 605.59
    assert (intensity.ratio, intensity.signal) == (1.0, pb.SIGNAL_MARGINAL)
    assert (intensity.source, when(intensity)) == ("static", START)
    assert intensity.staleness.ToTimedelta() > timedelta()


async def test_watch_sends_a_snapshot_then_each_change_in_order(two_zones: Carbon) -> None:
    """The synthetic zone moves on by half an hour of grid time, or more on a busy machine."""
    watch = two_zones.stub.Watch(pb.WatchRequest(), timeout=20)
    messages = [await anext(aiter(watch)) for _ in range(12)]
    watch.cancel()

    assert [message.snapshot for message in messages] == [True] + [False] * 11
    assert [item.zone for item in messages[0].intensities] == ["CAL", "NSW", "US-CAL"]
    changes = [item for message in messages[1:] for item in message.intensities]
    assert {item.zone for item in changes} == {"CAL"}
    starts = [when(item) for item in (messages[0].intensities[0], *changes)]
    assert all(later - earlier >= HOUR / 2 for earlier, later in pairwise(starts))
    for item in changes:
        assert item.ratio == pytest.approx(
            item.intensity_gco2e_per_kwh / item.average_gco2e_per_kwh
        )


async def test_a_reader_that_sleeps_wakes_up_to_the_present(two_zones: Carbon) -> None:
    """The reader holds the value in force a few messages later, however much it has missed."""
    watch = aiter(two_zones.stub.Watch(pb.WatchRequest(zones=["CAL"]), timeout=20))
    first = await anext(watch)
    while True:  # no client reads `watch` while the grid goes on for hours
        reply = await two_zones.stub.GetIntensity(pb.GetIntensityRequest(zone="CAL"))
        if when(reply.intensity) >= when(first.intensities[0]) + 4 * HOUR:
            break

    async for message in watch:
        assert [item.zone for item in message.intensities] == ["CAL"]
        if when(message.intensities[0]) >= when(reply.intensity):
            break


async def test_history_reaches_back_from_the_first_instant(two_zones: Carbon) -> None:
    """The source's past is history: a restarted service has lost nothing."""
    request = pb.GetHistoryRequest(
        zone="CAL", start=stamp(START - 3 * HOUR), end=stamp(START - HOUR)
    )
    reply = await two_zones.stub.GetHistory(request)
    whole = await two_zones.stub.GetHistory(pb.GetHistoryRequest(zone="CAL"))

    assert [when(item) for item in reply.intensities] == [
        START - 3 * HOUR + index * HOUR / 2 for index in range(4)
    ]
    starts = [when(item) for item in whole.intensities]
    assert all(later - earlier == HOUR / 2 for earlier, later in pairwise(starts))
    assert len(starts) >= 7 * 48


CALLS: Mapping[str, Callable[[CarbonServiceAsyncStub], Awaitable[object]]] = {
    "GetIntensity": lambda stub: stub.GetIntensity(pb.GetIntensityRequest(zone="MARS")),
    "GetHistory": lambda stub: stub.GetHistory(pb.GetHistoryRequest(zone="MARS")),
    "GetForecast": lambda stub: stub.GetForecast(pb.GetForecastRequest(zone="MARS")),
    "Watch": lambda stub: anext(aiter(stub.Watch(pb.WatchRequest(zones=["MARS"])))),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_an_unknown_zone_is_not_found_and_the_message_lists_the_known(
    two_zones: Carbon, call: Callable[[CarbonServiceAsyncStub], Awaitable[object]]
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(two_zones.stub)

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "zone 'MARS' is not followed; there are CAL, NSW, US-CAL"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GetHistoryRequest(), "zone"),
        (pb.GetHistoryRequest(zone="CAL", start=stamp(START), end=stamp(START)), "start"),
        (pb.GetHistoryRequest(zone="CAL", start=Timestamp(seconds=10**15)), "start"),
        (pb.GetHistoryRequest(zone="CAL", end=Timestamp(nanos=-1)), "end"),
    ],
    ids=["no zone", "empty interval", "year 31 million", "negative nanoseconds"],
)
async def test_a_wrong_history_request_names_the_field(
    two_zones: Carbon, request_: pb.GetHistoryRequest, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await two_zones.stub.GetHistory(request_)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    violations = details(caught.value)["BadRequest"].field_violations
    assert [violation.field for violation in violations] == [field]


async def test_an_empty_zone_is_an_invalid_argument(two_zones: Carbon) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await two_zones.stub.GetIntensity(pb.GetIntensityRequest())

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details(caught.value)["ErrorInfo"].reason == "INVALID_ARGUMENT"


async def test_a_forecast_begins_with_the_value_in_force_and_reaches_a_day_ahead(
    two_zones: Carbon,
) -> None:
    reply = await two_zones.stub.GetForecast(pb.GetForecastRequest(zone="CAL"))
    first, *later = reply.forecast.periods

    assert reply.forecast.method == "seasonal-regression"
    assert len(later) in (47, 48)  # requested at the very start of a half hour, or within it
    assert first.low_gco2e_per_kwh == first.high_gco2e_per_kwh == first.intensity_gco2e_per_kwh
    assert all(each.length.ToTimedelta() == HOUR / 2 for each in (first, *later))
    assert all(
        each.low_gco2e_per_kwh <= each.intensity_gco2e_per_kwh <= each.high_gco2e_per_kwh
        for each in later
    )


@pytest.mark.parametrize(
    "horizon",
    [timedelta(hours=-1), timedelta(hours=48, seconds=1), timedelta(days=10_000)],
    ids=["the past", "more than two days", "decades"],
)
async def test_a_horizon_beyond_two_days_is_refused(two_zones: Carbon, horizon: timedelta) -> None:
    length = Duration()
    length.FromTimedelta(horizon)
    stub = two_zones.stub
    for call in (
        stub.GetForecast(pb.GetForecastRequest(zone="CAL", horizon=length)),
        anext(aiter(stub.Watch(pb.WatchRequest(horizon=length)))),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        violations = details(caught.value)["BadRequest"].field_violations
        assert [violation.field for violation in violations] == ["horizon"]


async def test_a_watch_brings_forecasts_only_where_a_horizon_was_requested(
    two_zones: Carbon,
) -> None:
    """With every change, and for every zone: also one that never changes."""
    length = Duration()
    length.FromTimedelta(6 * HOUR)
    plain = await anext(aiter(two_zones.stub.Watch(pb.WatchRequest(), timeout=20)))
    watch = aiter(two_zones.stub.Watch(pb.WatchRequest(horizon=length), timeout=20))
    messages = [await anext(watch) for _ in range(3)]

    assert not any(item.HasField("forecast") for item in plain.intensities)
    assert [item.zone for item in messages[0].intensities] == ["CAL", "NSW", "US-CAL"]
    for item in (item for message in messages for item in message.intensities):
        first = item.forecast.periods[0]
        assert first.intensity_gco2e_per_kwh == item.intensity_gco2e_per_kwh
        assert first.since.ToDatetime(tzinfo=UTC) >= when(item)
        assert sum((each.length.ToTimedelta() for each in item.forecast.periods), timedelta()) > (
            5 * HOUR
        )


async def test_drain_ends_watches_in_order(two_zones: Carbon) -> None:
    """A watcher sees the end of the stream with OK, not a broken connection."""
    watch = two_zones.stub.Watch(pb.WatchRequest(zones=["NSW"]), timeout=20)
    await anext(aiter(watch))
    two_zones.stop.set()

    assert [message async for message in watch] == []
    assert await watch.code() is grpc.StatusCode.OK


async def test_health_waits_for_every_source(deployment: Deploy, tmp_path: Path) -> None:
    """A trace that begins a grid day (2 s) later holds back readiness, and no other zone."""
    (tmp_path / "late.csv").write_text(
        "timestamp,carbon_intensity_gco2e_per_kwh\n2022-04-09T00:00:00Z,123\n"
    )
    late = {"source": {"kind": "trace", "path": "late.csv", "loop": False}}
    async with carbon(deployment(zones(LATE=late, replay=FAST | {"speedup": 43_200}))) as service:
        assert await health_of(service) == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.stub.GetIntensity(pb.GetIntensityRequest(zone="LATE"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.stub.GetForecast(pb.GetForecastRequest(zone="LATE"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await service.stub.GetIntensity(pb.GetIntensityRequest(zone="US-CAL"))

        watch = service.health.Watch(health_pb2.HealthCheckRequest(), timeout=20)
        async for reply in watch:
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                break
        watch.cancel()
        reply = await service.stub.GetIntensity(pb.GetIntensityRequest(zone="LATE"))
        assert reply.intensity.intensity_gco2e_per_kwh == 123
        assert reply.intensity.source == "trace:late.csv"


async def test_a_broken_trace_ends_the_process_with_its_file_line_and_column(
    deployment: Deploy, tmp_path: Path
) -> None:
    """Status 2 and one line on stderr: the operator's mistake, not a crash."""
    (tmp_path / "bad.csv").write_text("timestamp,carbon_intensity_gco2e_per_kwh\nnow,1\n")
    deployment(zones(BAD={"source": {"kind": "trace", "path": "bad.csv"}}))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli", "carbon", "serve",
        env={**os.environ, "CINQUEFOIL_CONFIG": str(tmp_path / "cinquefoil.yaml")},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await process.communicate()

    message = f"{tmp_path / 'bad.csv'}: line 2: timestamp: must be ISO 8601, got 'now'"
    assert process.returncode == 2
    assert said.decode().splitlines()[-1] == message
    assert "Traceback" not in said.decode()


async def test_metrics_show_every_zone(deployment: Deploy) -> None:
    port = free_port()
    settings = zones(NSW=STATIC)
    settings["carbon"]["metrics"] = f"127.0.0.1:{port}"

    def scrape() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
            return str(reply.read(), "utf-8")

    horizon = pb.GetForecastRequest(zone="NSW", horizon=Duration(seconds=86_400))
    async with carbon(deployment(settings)) as service:
        before = await asyncio.to_thread(scrape)
        await service.stub.GetForecast(horizon)
        page = await asyncio.to_thread(scrape)

    labels = '{bound="expected",hours_ahead="6",zone="NSW"}'
    expected = f"cinquefoil_carbon_forecast_gco2e_per_kwh{labels}"
    assert expected not in before, "a scrape computes none"
    assert f"{expected} 605.59" in page
    labels = '{signal="marginal",zone="NSW"}'
    assert f"cinquefoil_carbon_intensity_gco2e_per_kwh{labels} 605.59" in page
    assert f"cinquefoil_carbon_intensity_ratio{labels} 1.0" in page
    assert f"cinquefoil_carbon_staleness_seconds{labels} " in page


@pytest.mark.parametrize("path", RECORDED)
async def test_a_recording_replays_from_the_day_that_was_requested(
    deployment: Deploy, path: Path
) -> None:
    """From 8 April 2022, hour by hour as recorded, averaged over the day before."""
    year = {"source": {"kind": "trace", "path": str(path)}}
    async with carbon(deployment(zones(CISO=year, replay=FAST | {"speedup": 36_000}))) as service:
        async for message in service.stub.Watch(pb.WatchRequest(zones=["CISO"]), timeout=20):
            if when(message.intensities[0]) >= START + 3 * HOUR:
                break
        request = pb.GetHistoryRequest(
            zone="CISO", start=stamp(START - 24 * HOUR), end=stamp(START + 3 * HOUR)
        )
        past = (await service.stub.GetHistory(request)).intensities

    recorded = {sample.since: sample.intensity_gco2e_per_kwh for sample in read_trace(path)}
    assert [when(item) for item in past] == [START + hour * HOUR for hour in range(-24, 3)]
    assert all(item.intensity_gco2e_per_kwh == recorded[when(item)] for item in past)
    day = [item.intensity_gco2e_per_kwh for item in past[:24]]
    assert past[24].average_gco2e_per_kwh == pytest.approx(sum(day) / 24)

"""The carbon service with recorded answers at the other end: half of an answer is used as such."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import stamina
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from services.carbon.app import run
from services.kit.rpc import dial
from tests.support.carbon.provider_answers import KEY
from tests.support.carbon.recorded import NAMES, Recorded
from tests.support.fake_provider import serving_http
from tests.support.virtual_clock import VirtualClock
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceAsyncStub
    from services.kit.config import Deployment
    from tests.conftest import Deploy

POLL_S = 60.0
HORIZON = timedelta(hours=24)


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Retries do not wait."""
    with stamina.set_testing(True, attempts=3):
        yield


def metric(name: str, zone: str, **labels: str) -> float | None:
    """Return the value of a metric of the zone's only source."""
    for family in REGISTRY.restricted_registry([name]).collect():
        for sample in family.samples:
            if sample.labels.items() >= {"zone": zone, **labels}.items():
                return sample.value
    return None


def polls(zone: str) -> dict[str, float]:
    """Return the number of polls by outcome."""
    return {
        sample.labels["outcome"]: sample.value
        for family in REGISTRY.restricted_registry(["cinquefoil_carbon_polls_total"]).collect()
        for sample in family.samples
        if sample.labels["zone"] == zone
    }


@asynccontextmanager
async def serving(
    deployment: Deployment, clock: VirtualClock
) -> AsyncIterator[CarbonServiceAsyncStub]:
    """Run the service while the block runs."""
    stop, ports = asyncio.Event(), asyncio.Queue[int]()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run(deployment, stop, ports.put_nowait, clock), name="carbon")
        try:
            async with dial(f"127.0.0.1:{await ports.get()}") as channel:
                yield CarbonServiceStub(channel)
        finally:
            stop.set()


async def polled(zone: str, count: int) -> None:
    """Wait until the source was polled so often."""
    await until(lambda: sum(polls(zone).values()) >= count)


async def in_force(stub: CarbonServiceAsyncStub, zone: str) -> pb.Intensity | None:
    try:
        return (await stub.GetIntensity(pb.GetIntensityRequest(zone=zone))).intensity
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return None


async def forecast(stub: CarbonServiceAsyncStub, zone: str) -> pb.Forecast | None:
    """Return the forecast, if it is the provider's."""
    request = pb.GetForecastRequest(zone=zone)
    request.horizon.FromTimedelta(HORIZON)
    try:
        found = (await stub.GetForecast(request)).forecast
    except grpc.aio.AioRpcError:
        return None
    return found if found.method.startswith("provider:") else None


def at(found: pb.Forecast, when: str) -> float:
    """Return the value of a forecast at an instant."""
    instant = datetime.fromisoformat(when)
    starts = [period.since.ToDatetime(UTC) for period in found.periods]
    return found.periods[bisect_right(starts, instant) - 1].intensity_gco2e_per_kwh


def shown(value: pb.Intensity | None) -> dict[str, Any] | None:
    """Return a value as the files have it."""
    if value is None:
        return None
    provenance = pb.Provenance.Name(value.provenance).removeprefix("PROVENANCE_").lower()
    return {"since": _minute(value), "intensity": number(value), "provenance": provenance}


def number(value: pb.Intensity) -> Any:
    ranked = value.signal == pb.SIGNAL_PERCENTILE
    return pytest.approx(value.percentile if ranked else value.intensity_gco2e_per_kwh, abs=0.001)


def _minute(value: pb.Intensity) -> str:
    return value.since.ToDatetime(UTC).strftime("%Y-%m-%dT%H:%MZ")


@pytest.mark.parametrize("name", NAMES)
async def test_half_of_an_answer_is_used_as_such(
    name: str, deployment: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Value, history, forecast, outcome, metrics and log are as the file says."""
    monkeypatch.setenv("THE_KEY", KEY)
    case, zone = Recorded.read(name), name.replace("/", "-").upper()
    wanted, clock = case.expected, VirtualClock(case.start)
    signal = {"co2_moer": "marginal", "signal_index": "percentile", "co2_aoer": "average"}.get(
        case.source.get("signal_type", ""),
        "marginal" if case.source["kind"] == "watttime" else "average",
    )
    with capture_logs() as lines:
        async with serving_http(case.route) as server:
            url = server.url + ("/api" if case.source["kind"] == "entsoe" else "")
            source = {**case.source, "url": url, "poll_s": POLL_S}
            settings: dict[str, Any] = {"source": source, "signal": signal}
            if signal != "percentile":
                settings["provider_forecast"] = True
            async with serving(deployment({"carbon": {"zones": {zone: settings}}}), clock) as stub:
                for count in range(1, case.polls + 1):
                    await polled(zone, count)
                    before = polls(zone)
                    if count < case.polls:
                        await clock.advance(POLL_S)
                value = await in_force(stub, zone)
                request = pb.GetHistoryRequest(zone=zone)
                request.end.FromDatetime(clock.now() + timedelta(seconds=1))
                past = await stub.GetHistory(request)
                ahead = await forecast(stub, zone)
    warnings = [line for line in lines if line["log_level"] in {"warning", "error"}]

    assert shown(value) == wanted["value"]
    assert {_minute(each): number(each) for each in past.intensities} == wanted["history"]
    assert (ahead is not None) == bool(wanted["forecast"])
    for when, expected in wanted["forecast"].items():
        assert ahead is not None
        assert at(ahead, when) == pytest.approx(expected)
    assert before.get(wanted["outcome"], 0) >= 1
    assert metric("cinquefoil_carbon_source_up", zone) == (wanted["outcome"] == "ok")
    for part in ("present", "history", "forecast"):
        came = metric("cinquefoil_carbon_source_part_up", zone, part=part)
        assert (part, came) == (part, wanted["parts"].get(part))
    assert len(warnings) == len(wanted["warnings"]), warnings
    for line, text in zip(warnings, wanted["warnings"], strict=True):
        assert text in str(line)
    for text in wanted.get("infos", ()):
        assert any(text in str(line) for line in lines), lines
    for path, count in wanted.get("requests", {}).items():
        assert (path, case.sent(path, server.requests)) == (path, count)
    assert KEY not in str(lines)


def test_there_are_answers_of_every_provider() -> None:
    """Each kind of source has the cases that all have."""
    kinds = {name.partition("/")[0] for name in NAMES}
    for kind in kinds:
        names = " ".join(name for name in NAMES if name.startswith(f"{kind}/"))
        for case in ("ok", "no-content", "moved", "clocks-"):
            assert f"{kind}/{case}" in names
    assert kinds == {"carbon-aware-sdk", "electricity-maps", "entsoe", "neso", "watttime"}
    assert len(NAMES) >= 60

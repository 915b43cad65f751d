"""`cinquefoil doctor` polls each carbon provider once, and says which part of it works."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import stamina

from services.cli.doctor.finding import Finding, Verdict
from services.cli.doctor.sources import sources
from tests.conftest import Deploy
from tests.support.fake_provider import Answer, HttpRequest, serving_http

KEY = "s3cr3t-key-0815"
MAPS = {"kind": "electricity-maps", "zone": "DE", "key_env": "THE_KEY"}
STATIC = {"kind": "static", "intensity_gco2e_per_kwh": 300.0}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A key, and retries that do not wait."""
    monkeypatch.setenv("THE_KEY", KEY)
    with stamina.set_testing(True, attempts=2):
        yield


def item(hours_ago: int, value: float | None) -> dict[str, Any]:
    when = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - hours_ago * timedelta(
        hours=1
    )
    return {"carbonIntensity": value, "datetime": when.isoformat(), "isEstimated": True}


def answer(request: HttpRequest) -> Answer:
    if request.path.endswith("latest"):
        return Answer(json.dumps(item(0, 216.0)))
    if request.path.endswith("history"):
        return Answer(json.dumps({"history": [item(1, 210.0)]}))
    return Answer(f'{{"error": "Request unauthorized for {KEY}"}}', status=403)


async def found(deploy: Deploy, zone: dict[str, Any], route: Any = answer) -> Finding:
    """Return the only finding on a zone whose first source is the server."""
    async with serving_http(route) as server:
        first, *rest = zone["source"]
        settings = {**zone, "source": [{**first, "url": server.url}, *rest]}
        made = deploy({"carbon": {"zones": {"DE": settings}}})
        (finding,) = await asyncio.to_thread(sources, made)
    assert KEY not in str(finding)
    return finding


async def test_a_part_that_is_not_offered_is_named(deployment: Deploy) -> None:
    """The present value, and why there is no forecast."""
    finding = await found(deployment, {"source": [MAPS]})

    assert finding.verdict is Verdict.NOTE
    assert finding.subject == "source DE, electricity-maps:DE"
    assert finding.found.startswith("216 gCO2e/kWh since ")
    assert "its forecast is not offered: " in finding.found
    assert "Request unauthorized for ***" in finding.found


@pytest.mark.parametrize(("rest", "verdict"), [((), Verdict.BAD), ((STATIC,), Verdict.NOTE)])
async def test_a_source_without_values_is_bad_where_it_is_alone(
    rest: tuple[dict[str, Any], ...], verdict: Verdict, deployment: Deploy
) -> None:
    """A fallback makes it a limitation."""
    finding = await found(deployment, {"source": [MAPS, *rest]}, lambda _: Answer(status=401))

    assert finding.verdict is verdict
    assert "no value (refused): " in finding.found
    assert finding.remedy == "check its key"


async def test_a_source_that_works_is_fine(deployment: Deploy) -> None:
    """All of its parts came."""
    finding = await found(deployment, {"source": [{**MAPS, "forecast": False}]})

    assert finding.verdict is Verdict.FINE


def test_a_key_that_is_not_there_is_bad(
    deployment: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request is sent without it."""
    monkeypatch.delenv("THE_KEY")
    (finding,) = sources(deployment({"carbon": {"zones": {"DE": {"source": MAPS}}}}))

    assert finding.verdict is Verdict.BAD
    assert "the variable is not set" in finding.found


def test_zones_without_providers_send_nothing(deployment: Deploy) -> None:
    """A trace, a synthetic or a static source is not polled."""
    assert sources(deployment({"carbon": {"zones": {"DE": {"source": STATIC}}}})) == []

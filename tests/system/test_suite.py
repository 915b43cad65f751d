"""One suite as processes with mutual TLS, under load from an unmodified Triton client."""

import asyncio
import os
import re
import signal
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from cinquefoil.planner.v1 import planner_pb2
from services.kit.config import Deployment
from services.kit.config.loader import load as load_file
from services.local.pki import TRUST_DOMAIN, Authority, identities
from tests.support import dashboards, reference
from tests.support.gpuagent.agent_service import workers_in
from tests.support.running_suite import SHARED, Running
from tests.support.waiting import until

pytestmark = [SHARED, pytest.mark.system, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def secured() -> bool:
    """Every service with an identity of its own."""
    return True


GIVEN = frozenset({"cinquefoil.yaml", "images.npy", "pki"})
"""Files that the test itself writes."""


def modes_of(folder: Path) -> dict[str, int]:
    """Return the permissions of what the suite wrote, by name."""
    written = (each for each in folder.rglob("*") if not GIVEN & {*each.relative_to(folder).parts})
    return {each.name: each.stat().st_mode & 0o777 for each in written}


def nothing_lost(report: dict[str, Any]) -> bool:
    """Return whether every request was answered; on failure pytest shows the report."""
    return not report["errors"] and report["answered"] == report["sent"] > 0


async def test_no_request_fails_while_plans_change(running: Running) -> None:
    """Plans move variants between slices under load; every request is answered and booked."""
    first = await running.newest_version()

    report = await running.load(14, 30)

    plans = (await running.planner.ListPlans(planner_pb2.ListPlansRequest(), timeout=5)).plans
    changes = [plan for plan in plans if plan.version > first and plan.steps]
    assert changes, "the grid's changes must have moved something"
    assert len(report["variants"]) > 1, report["variants"]
    assert nothing_lost(report), report
    assert report["energy_j"] > 0
    await until(lambda: _booked(running, report["answered"]))


async def test_a_scrape_has_every_metric_of_dashboards_and_alerts(
    running: Running, config: Path
) -> None:
    """Every service has the metrics of the reference, and no others; read by an operator.

    And what BASE would have emitted for the load before is in the planner's.
    """
    deployment = load_file(config)
    services = (
        deployment.carbon,
        deployment.planner,
        deployment.router,
        *deployment.nodes.values(),
    )
    pages = await asyncio.gather(
        *(asyncio.to_thread(_scrape, each.metrics, deployment) for each in services)
    )

    known = set[str]().union(*map(dashboards.names, pages))
    for service, page in zip(("carbon", "planner", "router", "gpuagent"), pages, strict=True):
        named = dashboards.names(page)
        ours = {name for name in named if name.startswith(reference.OURS)}
        assert ours == reference.series(service), "docs and scrape differ"
    missing = {name: used - known for name, used in dashboards.used().items() if used - known}
    assert not missing
    assert all("cinquefoil_build_info{" in page for page in pages)
    base = re.search(
        r'^cinquefoil_account_base_carbon_gco2e_total\{model="digits"\} (.*)$',
        pages[1],
        re.MULTILINE,
    )
    assert base is not None
    assert float(base[1]) > 0
    states = re.findall(r'^cinquefoil_plan_state\{state="(.*)"\} 1.0$', pages[1], re.MULTILINE)
    assert len(states) == 1
    assert 'cinquefoil_demand_provided_requests_per_second{model="digits"}' in pages[1]
    assert re.search(r'cinquefoil_slice_info\{.*mig_uuid="MIG-.*model="digits"', pages[3])


def _scrape(address: str, deployment: Deployment) -> str:
    operator = deployment.identity("operator")
    assert operator is not None
    assert operator.certificate_file is not None
    context = ssl.create_default_context(cafile=operator.ca_file)
    context.load_cert_chain(operator.certificate_file, operator.key_file)
    url = f"https://{address}/metrics"
    with urllib.request.urlopen(url, timeout=5, context=context) as reply:
        return str(reply.read(), "utf-8")


async def test_certificates_that_are_renewed_every_second_lose_nothing(
    running: Running, folder: Path
) -> None:
    """Certificates of every service; each request of the client has a connection of its own."""
    services = [
        each
        for each in identities(load_file(folder / "cinquefoil.yaml"))
        if each.role not in ("client", "operator")
    ]
    authority = Authority(folder / "pki", TRUST_DOMAIN)
    load = asyncio.create_task(running.load(5, 15, "--fresh"))
    while not load.done():
        for identity in services:
            authority.issue(identity, days=1)
        await asyncio.wait({load}, timeout=1)

    assert nothing_lost(await load)


async def test_what_services_write_is_their_user_s_alone(running: Running, folder: Path) -> None:
    """State, database, specs of workers, logs: whatever the umask of the user who starts them."""
    modes = modes_of(folder)
    assert {"planner.sqlite3", "journal.json", "carbon.log"} <= modes.keys()
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


async def test_nothing_accepted_is_lost_when_services_are_killed(
    running: Running, folder: Path
) -> None:
    """`kill -9` of carbon, planner, agent and a worker is not seen by clients at all."""
    load = asyncio.create_task(running.load(18, 20))
    await asyncio.sleep(2)
    for name in ("carbon", "planner", "gpuagent-node-0"):
        os.kill(running.suite.processes[name], signal.SIGKILL)
        await asyncio.sleep(4)
    workers_in(folder)[0].kill()

    report = await load

    assert nothing_lost(report), report
    before = await running.newest_version()
    assert await _replans(running, before), "the planner must go on planning after its death"


async def test_a_killed_router_returns_and_clients_retry_what_it_held(running: Running) -> None:
    """`kill -9` of the router: a client that retries UNAVAILABLE gets every answer."""
    load = asyncio.create_task(running.load(6, 20, "--retry"))
    await asyncio.sleep(2)
    os.kill(running.suite.processes["router"], signal.SIGKILL)

    report = await load

    assert report["retries"] > 0, "the kill must have been felt"
    assert nothing_lost(report), report


async def _booked(running: Running, answered: int) -> bool:
    """Return whether the account has every request that was answered, and its energy."""
    call = running.planner.ReadAccount(planner_pb2.ReadAccountRequest(), timeout=5)
    entries = [entry async for response in call for entry in response.entries]
    energy_j = sum(entry.energy_j for entry in entries if entry.model)
    return sum(entry.requests for entry in entries) == answered and energy_j > 0


async def _replans(running: Running, version: int) -> bool:
    for _ in range(100):
        if await running.newest_version() > version:
            return True
        await asyncio.sleep(0.2)
    return False

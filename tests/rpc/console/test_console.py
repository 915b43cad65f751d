"""The console over a real planner and carbon service; the router is away."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from services.cli.client import connected
from services.cli.web_console.readers import ServiceReaders
from services.console.app import STATIC, application
from services.console.server import serve
from services.kit import config
from services.kit.net import free_port
from tests.support.fake_agent import Agent, active, carbon, deployment, living, planner

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOST = "127.0.0.1"
FILES = {str(each.relative_to(STATIC)) for each in STATIC.rglob("*")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def readers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceReaders]:
    """What reads a deployment whose planner has plan 1 active."""
    folder = tmp_path_factory.mktemp("console")
    async with carbon() as grid:
        settings = deployment(
            folder,
            grid.port,
            listen=f"{HOST}:{free_port()}",
            triggers=config.Triggers(min_interval_s=60.0, settle_s=0.3),
        )
        away = config.Router(listen=f"{HOST}:{free_port()}")
        settings = settings.model_copy(update={"router": away})
        agent = Agent("node-a", ("GPU-1", "GPU-2"))
        async with planner(settings) as stub, living(agent, stub):
            await active(stub, 1)
            async with connected(settings) as clients:
                yield ServiceReaders(clients, settings, time.monotonic)


@pytest_asyncio.fixture(loop_scope="module")
async def browser(readers: ServiceReaders) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the console, without a socket between."""
    transport = httpx.ASGITransport(application(readers, [HOST]))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
        yield client


async def body(browser: httpx.AsyncClient, path: str) -> Any:
    answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_present_has_gpus_zones_and_account_and_says_who_is_away(
    browser: httpx.AsyncClient,
) -> None:
    now = await body(browser, "/api/now")

    assert [gpu["uuid"] for gpu in now["status"]["gpus"]] == ["GPU-1", "GPU-2"]
    assert now["status"]["plan"]["version"] == 1
    assert set(now["forecasts"]) == {zone["zone"] for zone in now["status"]["zones"]}
    assert now["account"][-1]["name"] == "total"
    assert now["status"]["models"] == []
    assert any(each.startswith("router at ") for each in now["status"]["problems"])


async def test_a_plan_is_listed_told_explained_and_compared(browser: httpx.AsyncClient) -> None:
    listed = (await body(browser, "/api/plans"))["plans"]
    one = await body(browser, "/api/plans/1")
    why = await body(browser, "/api/plans/1/explanation")
    diff = await body(browser, "/api/diff?from=1&to=1")

    assert [(plan["version"], plan["pinned"]) for plan in listed] == [("1", False)]
    assert one["segments"]
    assert one["measures"][0]["name"] == "power_w"
    assert why["version"] == "1"
    assert (diff["started"], diff["stopped"], diff["kept"]) == ([], [], len(one["segments"]))


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/plans/77", 404, "77"),
        ("/api/plans/-1", 400, "version: must be a plan version"),
        ("/api/diff?from=1", 400, "to: must be a plan version"),
    ],
)
async def test_errors_are_a_status_and_a_sentence(
    browser: httpx.AsyncClient, path: str, status: int, said: str
) -> None:
    answer = await browser.get(path)

    assert answer.status_code == status
    assert said in answer.json()["error"]


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/plans", "/api/plans/77", "/none"])
async def test_every_response_permits_only_the_consoles_own_files(
    browser: httpx.AsyncClient, path: str
) -> None:
    headers = (await browser.get(path)).headers

    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"


async def test_a_page_under_another_name_reads_nothing_and_nothing_can_be_changed(
    browser: httpx.AsyncClient,
) -> None:
    elsewhere = await browser.get("/api/plans", headers={"host": "evil.example"})
    changing = await browser.post("/api/change/rollback", json={"version": 1})

    assert elsewhere.status_code == 400
    assert changing.status_code == 403
    assert "read-only" in changing.json()["error"]


async def test_pages_follow_the_present_until_the_console_stops(readers: ServiceReaders) -> None:
    """A real listener: the stream begins with the present, and does not hold up the end."""
    stop, at = asyncio.Event(), f"{HOST}:{free_port()}"
    async with asyncio.TaskGroup() as tasks, httpx.AsyncClient() as client:
        serving = tasks.create_task(serve(readers, at, stop))
        stream = client.stream("GET", f"http://{at}/api/events")
        while True:
            try:
                response = await stream.__aenter__()
                break
            except httpx.ConnectError:
                stream = client.stream("GET", f"http://{at}/api/events")
                await asyncio.sleep(0.01)
        lines = response.aiter_lines()
        first = await anext(lines)
        stop.set()
        await serving
        await response.aclose()

    assert json.loads(first.removeprefix("data: "))["status"]["plan"]["version"] == 1


async def test_pages_have_no_inline_script_or_style_and_name_only_files_that_exist() -> None:
    """What the policy would refuse, or a browser would not find."""
    page = (STATIC / "index.html").read_text()
    assert "<style" not in page
    assert " style=" not in page
    assert "<script>" not in page
    for script in STATIC.glob("*.js"):
        for imported in script.read_text().split(' from "./')[1:]:
            assert imported.split('"')[0] in FILES
    for named in page.split('"/static/')[1:]:
        assert named.split('"')[0] in FILES


async def test_what_others_made_is_as_published() -> None:
    """Digests of vendor.json, which `make vendor` writes, against the files; none is unlisted."""
    folder = STATIC / "vendor"
    entries = json.loads((folder / "vendor.json").read_text())
    listed = {name: file for entry in entries for name, file in entry["files"].items()}

    assert {each.name for each in folder.iterdir()} == {"vendor.json", *listed}
    for name, file in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == file["sha256"], name
    assert {entry["licence"] for entry in entries} == {"MIT"}

"""The console over a real planner and carbon service; the router is away."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from services.cli.client import Clients, connected
from services.cli.web_console import endpoints
from services.cli.web_console.app import application
from services.cli.web_console.identity import (
    READ_ONLY,
    SESSION_S,
    Rights,
    Tokens,
    read_tokens,
)
from services.cli.web_console.operators import carry_out
from services.cli.web_console.readers import ServiceReaders
from services.cli.web_console.server import run, serve
from services.console.page import STATIC
from services.kit import config
from services.kit.errors import FailedPrecondition, InvalidArgument, NotFound
from services.kit.http.server import serving_http
from services.kit.net import free_port
from services.kit.process.reload import Reloads
from tests.support.fake_agent import Agent, active, carbon, deployment, living, planner
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOST = "127.0.0.1"
TOKEN = "t" * 32
FILES = {str(each.relative_to(STATIC)) for each in STATIC.rglob("*")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Clients, config.Deployment]]:
    """A deployment whose planner has plan 1 active."""
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
                yield clients, settings


@pytest.fixture(scope="module")
def readers(running: tuple[Clients, config.Deployment]) -> ServiceReaders:
    """The readers of the running services that the console uses."""
    return ServiceReaders(*running, time.monotonic)


@asynccontextmanager
async def client_of(
    readers: ServiceReaders, rights: Rights = READ_ONLY
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a console while the block runs; yield a client of it."""
    app = application(readers, [HOST], rights)
    async with (
        serving_http(f"{HOST}:0", app, max_connections=8, grace_s=0.0) as port,
        httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=30) as client,
    ):
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def browser(readers: ServiceReaders) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the console."""
    async with client_of(readers) as client:
        yield client


async def body(browser: httpx.AsyncClient, path: str) -> Any:
    answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


class Recorded:
    """Operators that note orders, and refuse all but pins."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, Any]] = []

    async def carry_out(self, order: str, given: dict[str, Any], owner: str) -> dict[str, Any]:
        assert owner == "ada"
        if order != "pin":
            raise FailedPrecondition("the proposal has expired")
        self.orders.append((order, given))
        return {"version": 1}


@pytest_asyncio.fixture(loop_scope="module")
async def orders() -> Recorded:
    """The orders that the guarded console carried out."""
    return Recorded()


@pytest_asyncio.fixture(loop_scope="module")
async def guarded(readers: ServiceReaders, orders: Recorded) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a console with a token and operators."""
    rights = Rights(Tokens({"ada": TOKEN}), orders.carry_out)
    async with client_of(readers, rights) as client:
        yield client


async def test_the_present_has_gpus_zones_and_account_and_says_who_is_away(
    browser: httpx.AsyncClient,
) -> None:
    now = await body(browser, "/api/now")

    assert [gpu["uuid"] for gpu in now["status"]["gpus"]] == ["GPU-1", "GPU-2"]
    assert now["status"]["plan"]["version"] == 1
    assert set(now["palette"]) == {"digits"}
    assert (now["stale"], set(now["days"])) == ({}, {"today", "yesterday"})
    assert now["account"][-1]["name"] == "total"
    assert now["status"]["models"] == []
    assert any(each.startswith("router at ") for each in now["status"]["problems"])


async def test_a_plan_is_listed_shown_explained_and_compared(browser: httpx.AsyncClient) -> None:
    listed = (await body(browser, "/api/plans"))["plans"]
    one = await body(browser, "/api/plans/1")
    why = await body(browser, "/api/plans/1/explanation")
    diff = await body(browser, "/api/diff?from=1&to=1")

    assert [(plan["version"], plan["pinned"]) for plan in listed] == [("1", False)]
    assert one["segments"]
    assert "power_w" in {each["name"] for each in one["measures"]}
    assert why["version"] == "1"
    assert (diff["started"], diff["stopped"], diff["kept"]) == ([], [], len(one["segments"]))


async def test_another_weight_of_carbon_is_a_proposal_and_another_load_is_not(
    browser: httpx.AsyncClient,
) -> None:
    cleaner = await body(browser, "/api/what-if?carbon_weight=0.9")
    busier = await body(browser, "/api/what-if?demand=2&without=GPU-2")

    assert cleaner["proposal_id"]
    assert cleaner["plan"]["inputs"]["carbon_weight"] == 0.9
    assert not busier["proposal_id"]
    assert busier["plan"]["inputs"]["demand_rps"] == {"digits": 120.0}
    assert {each["spec"]["gpu_uuid"] for each in busier["plan"]["segments"]} == {"GPU-1"}


async def test_why_a_plan_would_be_so_is_computed_on_request(browser: httpx.AsyncClient) -> None:
    brief = await body(browser, "/api/what-if?carbon_weight=0.9")
    whole = await body(browser, "/api/what-if?carbon_weight=0.9&why=1")

    assert not brief["explanation"]["sentences"]
    assert whole["explanation"]["sentences"]
    assert brief["explanation"]["plan"] == whole["explanation"]["plan"]


async def test_outcomes_come_one_by_one_and_then_the_end(browser: httpx.AsyncClient) -> None:
    events = (await browser.get("/api/sweep?demand=2")).text.strip().split("\n\n")

    points = [json.loads(each.removeprefix("data: ")) for each in events[:-1]]
    assert [each["carbon_weight"] for each in points] == sorted(
        each["carbon_weight"] for each in points
    )
    assert len(points) == 8
    assert events[-1] == "event: end\ndata: {}"


async def test_receipts_of_a_router_that_is_away_end_with_the_reason(
    browser: httpx.AsyncClient,
) -> None:
    answer = await browser.get("/api/receipts?sample=0.5&model=m")

    assert answer.text.startswith('event: problem\ndata: {"error":"router at ')


async def test_models_are_as_configured_and_served(browser: httpx.AsyncClient) -> None:
    (model,) = (await body(browser, "/api/models"))["models"]

    assert (model["model"], model["discipline"]) == ("digits", "fcfs")
    assert [each["variant"] for each in model["variants"]] == ["small", "large"]


async def test_a_reloaded_file_changes_the_models_that_are_shown(
    running: tuple[Clients, config.Deployment],
) -> None:
    """A model that was added after the console started is listed and has its colour."""
    settings = running[1].model_copy(
        update={"console": config.WebConsole(listen=f"{HOST}:{free_port()}")}
    )
    added = settings.model_copy(
        update={"models": {**settings.models, "faces": settings.models["digits"]}}
    )
    stop, reloads = asyncio.Event(), Reloads(settings)
    async with (
        asyncio.TaskGroup() as tasks,
        httpx.AsyncClient(base_url=f"http://{settings.console.listen}", timeout=30) as client,
    ):
        tasks.create_task(run(settings, stop, reloads=reloads))
        await until(lambda: answers(client))
        await reloads.apply(added)
        models = (await body(client, "/api/models"))["models"]
        colours = (await body(client, "/api/now"))["palette"]
        stop.set()

    assert [each["model"] for each in models] == ["digits", "faces"]
    assert set(colours) == {"digits", "faces"}


async def answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/api/models")).is_success
    except httpx.TransportError:
        return False


async def test_the_account_is_rows_and_hours_and_csv(browser: httpx.AsyncClient) -> None:
    found = await body(browser, "/api/account?by=node&hours=48")
    text = (await browser.get("/api/account.csv")).text

    assert found["rows"][-1]["name"] == "total"
    assert isinstance(found["hours"], list)
    assert text.startswith("name,energy_j,")


async def test_with_tokens_only_their_owners_read(guarded: httpx.AsyncClient) -> None:
    """By header or by the cookie of a log-in, which no script reads and no other site sends."""
    stranger = await guarded.get("/api/plans")
    wrong = await guarded.post("/api/login", json={"token": "x" * 32})
    bearer = await guarded.get("/api/plans", headers={"authorization": f"Bearer {TOKEN}"})
    login = await guarded.post("/api/login", json={"token": TOKEN})
    reader = await guarded.get("/api/session")

    assert (stranger.status_code, wrong.status_code, bearer.status_code) == (401, 403, 200)
    assert TOKEN not in login.headers["set-cookie"]
    assert "HttpOnly" in login.headers["set-cookie"]
    assert "SameSite=strict" in login.headers["set-cookie"]
    assert reader.json() == {"owner": "ada", "changes": True}


@pytest.mark.parametrize(
    ("host", "more", "secure"),
    [
        ("127.0.0.1:8467", {}, False),
        ("localhost", {}, False),
        ("[::1]:8467", {}, False),
        ("console.example", {}, True),
        ("10.0.0.7:8467", {}, True),
        ("127.0.0.1", {"x-forwarded-proto": "https"}, True),
    ],
)
async def test_a_session_is_sent_in_plaintext_on_this_machine_alone_and_ends(
    readers: ServiceReaders, host: str, more: dict[str, str], secure: bool
) -> None:
    """The cookie is Secure beyond loopback and behind a proxy with TLS."""
    app = application(readers, ["*"], Rights(Tokens({"ada": TOKEN})))
    async with (
        serving_http(f"{HOST}:0", app, max_connections=8, grace_s=0.0) as port,
        httpx.AsyncClient(base_url=f"http://{HOST}:{port}") as client,
    ):
        login = await client.post(
            "/api/login", json={"token": TOKEN}, headers={"host": host, **more}
        )

    assert ("Secure" in login.headers["set-cookie"]) is secure
    assert f"Max-Age={SESSION_S}" in login.headers["set-cookie"]


async def test_wrong_tokens_from_a_host_are_counted_and_sessions_stay(
    guarded: httpx.AsyncClient,
) -> None:
    """After ten in a minute no token from there is read, in a log-in or a header."""
    await guarded.post("/api/login", json={"token": TOKEN})
    wrong = [await guarded.post("/api/login", json={"token": "x" * 32}) for _ in range(11)]
    bearer = await guarded.get("/api/plans", headers={"authorization": f"Bearer {TOKEN}"})
    session = await guarded.get("/api/plans")

    assert [each.status_code for each in wrong] == [403] * 10 + [429]
    assert 0 < int(wrong[-1].headers["retry-after"]) <= 60
    assert bearer.status_code == 429
    assert session.status_code == 200


async def test_streams_of_events_are_bounded(
    readers: ServiceReaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one reader; a page that closes makes room."""
    monkeypatch.setattr(endpoints, "_MOST_OF_A_READER", 2)
    async with client_of(readers) as client, AsyncExitStack() as pages:
        opened = [
            await pages.enter_async_context(client.stream("GET", "/api/events")) for _ in range(2)
        ]
        refused = await client.get("/api/events")
        await opened[0].aclose()

        async def again() -> bool:
            async with client.stream("GET", "/api/events") as page:
                return page.status_code == 200

        await until(again)

    assert [each.status_code for each in opened] == [200, 200]
    assert refused.status_code == 429
    assert "close another page" in refused.json()["error"]


async def test_half_requests_give_way_to_whole_ones(readers: ServiceReaders) -> None:
    """As many connections as there may be, none of which ends its head."""
    app = application(readers, [HOST])
    async with serving_http(f"{HOST}:0", app, max_connections=8, grace_s=0.0) as port:
        halves = [await asyncio.open_connection(HOST, port) for _ in range(24)]
        for _, writer in halves:
            writer.write(b"GET /api/now HTTP/1.1\r\nHost: 127.")
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=30) as client:
            answers = await asyncio.gather(*(client.get("/api/session") for _ in range(4)))
        for _, writer in halves:
            writer.close()

    assert [each.status_code for each in answers] == [200] * 4


async def test_a_change_needs_an_owner_this_site_and_json(
    guarded: httpx.AsyncClient, orders: Recorded
) -> None:
    owner = {"authorization": f"Bearer {TOKEN}"}
    json_of = {"content-type": "application/json"}
    refused = {
        "no owner": await guarded.post("/api/change/pin", json={"version": 1}),
        "a form": await guarded.post("/api/change/pin", data={"version": 1}, headers=owner),
        "another site": await guarded.post(
            "/api/change/pin", json={}, headers=owner | {"sec-fetch-site": "cross-site"}
        ),
        "no object": await guarded.post("/api/change/pin", content=b"[]", headers=owner | json_of),
        "too long": await guarded.post(
            "/api/change/pin", content=b"{" * 10_001, headers=owner | json_of
        ),
    }
    hostile = {
        "half a character": await guarded.post(
            "/api/login", content=rb'{"token": "\ud800"}', headers=json_of
        ),
        "nested deep": await guarded.post("/api/login", content=b"[" * 9_000, headers=json_of),
        "bytes": await guarded.get("/api/plans", headers={b"authorization": b"Bearer \xff"}),
        "a session of bytes": await guarded.get(
            "/api/plans", headers={b"cookie": b"cinquefoil-console=9999999999.\xff"}
        ),
    }
    done = await guarded.post("/api/change/pin", json={"version": 1}, headers=owner)

    assert [each.status_code for each in refused.values()] == [401, 415, 403, 400, 400]
    assert [each.status_code for each in hostile.values()] == [400, 400, 401, 401]
    assert done.status_code == 200
    assert orders.orders == [("pin", {"version": 1})]


async def test_a_change_that_the_planner_refuses_is_a_sentence(guarded: httpx.AsyncClient) -> None:
    answer = await guarded.post(
        "/api/change/apply", json={}, headers={"authorization": f"Bearer {TOKEN}"}
    )

    assert answer.status_code == 409
    assert answer.json() == {"error": "the proposal has expired"}


async def test_orders_are_the_planners_own(
    running: tuple[Clients, config.Deployment],
) -> None:
    """Pinned and let go by the real planner; an unknown order or field is refused by name."""
    give = partial(carry_out, running[0])
    assert (await give("pin", {"version": 1}, "ada"))["version"] == "1"
    assert await give("unpin", {}, "ada") == {}
    with pytest.raises(NotFound, match="order: must be one of apply, pin"):
        await give("drop", {}, "ada")
    with pytest.raises(InvalidArgument, match=r"pin: .*vrsion"):
        await give("pin", {"vrsion": 1}, "ada")


async def test_a_token_file_is_made_once_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    read_tokens(path)
    name, token = path.read_text().split()
    path.write_text(f"# readers\n{name} {token}\nada {TOKEN}\n")

    tokens = read_tokens(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert (tokens.owner(token), tokens.owner(TOKEN), tokens.owner("")) == ("operator", "ada", None)
    path.write_text("ada short\n")
    with pytest.raises(InvalidArgument, match="line 1"):
        read_tokens(path)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/what-if?demand=-1", 400, "demand: must be a number"),
        ("/api/what-if?speed=1", 400, "speed: must be one of"),
        ("/api/account?by=cloud", 400, "by: must be one of model, node, zone"),
        ("/api/account?hours=0", 400, "hours: must be 1.."),
        ("/api/history?hours=0", 400, "hours: must be 1.."),
        ("/api/history?step=-5", 400, "step: must be 0.."),
        (f"/api/history?hours=000000001{'9' * 5000}", 400, "hours: must be 1.."),
        (f"/api/history?step=000000001{'9' * 9}", 400, "step: must be 0.."),
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


async def test_files_and_long_documents_are_compressed(browser: httpx.AsyncClient) -> None:
    """Where the browser accepts it; short documents, and what a program wants plain, are not."""
    script = await browser.get("/static/main.js")
    plain = await browser.get("/static/main.js", headers={"accept-encoding": "identity"})
    now = await browser.get("/api/now")
    short = await browser.get("/api/session")

    assert "content-encoding" in script.headers
    assert "content-encoding" in now.headers
    assert script.content == plain.content == (STATIC / "main.js").read_bytes()
    assert script.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in plain.headers
    assert "content-encoding" not in short.headers


async def test_an_order_outlives_the_page_that_gave_it(readers: ServiceReaders) -> None:
    """A closed page cancels its request, and the planner's call goes on to its end."""
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> dict[str, Any]:
        begun.set()
        await may_end.wait()
        ended.set()
        return {}

    async with client_of(readers, Rights(Tokens({"ada": TOKEN}), slow)) as client:
        headers = {"authorization": f"Bearer {TOKEN}"}
        page = asyncio.create_task(client.post("/api/change/pin", json={}, headers=headers))
        await begun.wait()
        page.cancel()
        await asyncio.gather(page, return_exceptions=True)
        assert (await client.get("/api/session", headers=headers)).status_code == 200
        may_end.set()
        async with asyncio.timeout(45):
            await ended.wait()


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
    with_a_port = await browser.get("/api/plans", headers={"host": f"{HOST}:8467"})
    changing = await browser.post("/api/change/rollback", json={"version": 1})

    assert (elsewhere.status_code, with_a_port.status_code) == (400, 200)
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
        id_, first = await anext(lines), await anext(lines)
        stop.set()
        await serving
        await response.aclose()

    assert id_.startswith("id: ")
    assert json.loads(first.removeprefix("data: "))["status"]["plan"]["version"] == 1


async def test_a_page_that_comes_back_gets_the_present_only_if_it_has_changed(
    readers: ServiceReaders,
) -> None:
    """By the id of the last event that it saw (Last-Event-ID)."""
    stop, at = asyncio.Event(), f"{HOST}:{free_port()}"
    async with asyncio.TaskGroup() as tasks, httpx.AsyncClient() as client:
        serving = tasks.create_task(serve(readers, at, stop))

        async def first_line(known: str) -> str:
            headers = {"last-event-id": known}
            while True:
                try:
                    async with client.stream(
                        "GET", f"http://{at}/api/events", headers=headers
                    ) as got:
                        return await anext(got.aiter_lines())
                except httpx.ConnectError:
                    await asyncio.sleep(0.01)

        seen = await first_line("")
        again = await first_line(seen.removeprefix("id: "))
        other = await first_line("an older one")
        stop.set()
        await serving

    assert seen == other
    assert again == ": unchanged"


async def test_history_is_one_axis_of_time_with_what_ran_and_why(
    browser: httpx.AsyncClient,
) -> None:
    """Every series has a value, or null, for each time; the plans have their slices and cause."""
    found = await body(browser, "/api/history?hours=2&step=300")

    times_s = found["times_s"]
    assert found["step_s"] == 300
    assert all(later - sooner == 300 for sooner, later in pairwise(times_s))
    assert found["until_s"] - found["since_s"] == pytest.approx(7200)
    for series in (
        *found["power"].values(),
        *found["emissions"].values(),
        *(zone["intensity_gco2e_per_kwh"] for zone in found["zones"]),
        *(gpu["power_w"] for gpu in found["gpus"]),
        *(
            model[name]
            for model in found["models"]
            for name in ("latency_s", "requests_rps", "within", "accuracy")
        ),
    ):
        assert len(series) == len(times_s)
    (first, *_) = found["plans"]
    assert first["version"] == 1
    assert first["cause"].startswith("first plan")
    assert first["sentence"].startswith("Plan 1 at ")
    assert first["slices"][0].keys() == {
        *("gpu", "start", "compute_slices", "placement", "model", "variant", "accuracy")
    }
    assert found["saved"].keys() == {"today_gco2e", "low_gco2e", "high_gco2e", "share"}


async def test_without_a_planner_every_document_is_its_reason_and_a_command(
    running: tuple[Clients, config.Deployment],
) -> None:
    """An error that several readings share is one sentence, not a fault of the console."""
    settings = running[1]
    away = settings.planner.model_copy(update={"listen": f"{HOST}:{free_port()}"})
    settings = settings.model_copy(update={"planner": away})
    async with connected(settings) as clients:
        alone = ServiceReaders(clients, settings, time.monotonic)
        async with client_of(alone) as program:
            for path in ("history", "plans", "plans/1", "what-if", "models", "account"):
                answer = await program.get(f"/api/{path}")
                error = answer.json()["error"]
                assert answer.status_code == 503, (path, error)
                assert error.startswith("planner at "), path
                assert "`cinquefoil up` starts" in error, path


async def test_pages_have_no_inline_script_or_style_and_name_only_files_that_exist() -> None:
    """Inline code, which the policy would refuse, and files that a browser would not find."""
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

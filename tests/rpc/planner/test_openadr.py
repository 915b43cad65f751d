"""OpenADR: events of a server limit a site; one that lies, falls silent or dies stops nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cinquefoil.planner.v1 import grid_event_pb2 as ge
from cinquefoil.planner.v1 import planner_pb2
from services.kit import config
from tests.support.fake_agent import Agent, Grid, active, deployment, living, planner
from tests.support.vtn import CLIENT_ID, CLIENT_SECRET, Vtn, vtn
from tests.support.waiting import until

NOW = datetime.now(UTC)
WRONG = "wrong one"


def event(
    name: str, limit_kw: object, start: datetime = NOW, length: str = "PT3H"
) -> dict[str, Any]:
    return {
        "id": name,
        "programID": "p",
        "intervalPeriod": {"start": start.isoformat(), "duration": length},
        "intervals": [
            {"id": 0, "payloads": [{"type": "IMPORT_CAPACITY_LIMIT", "values": [limit_kw]}]}
        ],
    }


@asynccontextmanager
async def following(
    folder: Path, grid: Grid, server: Vtn, secret: str = CLIENT_SECRET, **settings: Any
) -> AsyncIterator[Any]:
    """Yield a client of a planner that follows a server, with one node."""
    file = folder / "secret"
    file.write_text(f"{secret}\n")
    openadr = config.OpenAdr(
        url=server.url,
        site="hall",
        client_id=CLIENT_ID,
        client_secret_file=file,
        poll_s=1,
        timeout_s=2,
        **settings,
    )
    found = deployment(folder, grid.port).model_copy(
        update={
            "sites": {"hall": config.Site(nodes=("node-*",))},
            "grid": config.Grid(openadr={"utility": openadr}),
        }
    )
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(found) as stub, living(agent, stub):
        await active(stub, 1)
        yield stub


async def listed(stub: Any) -> dict[str, ge.GridEvent]:
    answer = await stub.ListGridEvents(planner_pb2.ListGridEventsRequest(all=True))
    return {each.event_id: each for each in answer.events}


async def limit(stub: Any) -> tuple[float | None, str]:
    """Return the limit in force, W, and where it is from."""
    answer = await stub.ListGridEvents(planner_pb2.ListGridEventsRequest())
    site = answer.sites[0]
    return (site.limit_w if site.HasField("limit_w") else None), site.setting


async def condition(stub: Any, kind: str) -> str:
    fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
    found = [c for c in fleet.conditions if planner_kind(c.kind) == f"CONDITION_KIND_{kind}"]
    return found[0].sentence if found else ""


def planner_kind(kind: int) -> str:
    from cinquefoil.condition.v1.condition_pb2 import ConditionKind  # noqa: PLC0415

    return str(ConditionKind.Name(kind))  # type: ignore[arg-type]


async def test_events_limit_the_site_until_the_server_withdraws_them_and_are_reported(
    tmp_path: Path, grid: Grid, capfd: pytest.CaptureFixture[str]
) -> None:
    async with vtn() as server, following(tmp_path, grid, server) as stub:
        for n in range(60):  # more than a page
            server.events[f"f{n}"] = event(f"f{n}", 9, NOW + timedelta(days=1, minutes=n))
        server.events["now"] = event("now", 0.9)

        await until(lambda: _is(stub, 900.0))
        await until(partial(_lists, stub, 61))
        server.revoke()  # another token is fetched
        server.events["now"] = event("now", 0.8)
        await until(lambda: _is(stub, 800.0))
        del server.events["now"]
        await until(lambda: _is(stub, None))
        await until(lambda: len(server.reports) > 0)

        server.events["now"] = event("now", 0.7)  # withdrawn by mistake: it is followed again
        await until(lambda: _is(stub, 700.0))
        assert not await condition(stub, "GRID_EVENT_REFUSED")
        assert server.reports[0]["eventID"] == "now"
        shown = "".join(capfd.readouterr())
        assert CLIENT_SECRET not in shown
        assert not any(token in shown for token in server.tokens)


async def _lists(stub: Any, count: int) -> bool:
    return len(await listed(stub)) == count


async def _is(stub: Any, limit_w: float | None) -> bool:
    return (await limit(stub))[0] == limit_w


async def test_a_known_event_outlives_contact_and_then_the_default_holds_too(
    tmp_path: Path, grid: Grid
) -> None:
    lost: dict[str, Any] = {"lost_after_s": 3, "lost_limit_w": 700}
    async with vtn() as server, following(tmp_path, grid, server, **lost) as stub:
        server.events["now"] = event("now", 0.9)
        await until(lambda: _is(stub, 900.0))
        server.down = True
        await until(lambda: _is(stub, 700.0))

        assert (await limit(stub))[1] == "grid.openadr.utility.lost_limit_w"
        assert "HTTP status 503" in await condition(stub, "GRID_SERVER_AWAY")
        server.down = False
        await until(lambda: _is(stub, 900.0))
        assert not await condition(stub, "GRID_SERVER_AWAY")


LIES = {
    "GRID_SERVER_AWAY": (
        b"[" * 100_000,
        b'"' + b"x" * (5 << 20) + b'"',
        b'{"events": 7}',
    ),
    "GRID_EVENT_REFUSED": (
        json.dumps([event("e", -5)]).encode(),
        json.dumps([event("e", 1e300)]).encode(),
        json.dumps([7, None, {"id": []}]).encode(),
        json.dumps([event(f"e{n}", 5) for n in range(50)]).encode(),  # as every page
    ),
}


async def test_a_server_that_lies_is_a_condition_and_is_polled_on(
    tmp_path: Path, grid: Grid
) -> None:
    async with vtn() as server, following(tmp_path, grid, server) as stub:
        for kind, answers in LIES.items():
            for answer in answers:
                server.answer = None
                await until(partial(_lacks, stub, kind))
                server.answer = answer
                await until(partial(_has, stub, kind))
                assert len(await listed(stub)) <= 64


async def _lacks(stub: Any, kind: str) -> bool:
    return not await condition(stub, kind)


async def _has(stub: Any, kind: str) -> bool:
    return bool(await condition(stub, kind))


async def test_a_server_whose_clock_is_wrong_is_a_condition(tmp_path: Path, grid: Grid) -> None:
    """Its answers' Date says so; events are followed all the same."""
    async with vtn() as server, following(tmp_path, grid, server) as stub:
        server.date = NOW - timedelta(hours=1)
        server.events["now"] = event("now", 0.9)
        await until(lambda: _has(stub, "GRID_SERVER_AWAY"))
        assert " s behind this one" in await condition(stub, "GRID_SERVER_AWAY")
        await until(lambda: _is(stub, 900.0))
        server.date = None
        await until(partial(_lacks, stub, "GRID_SERVER_AWAY"))


async def test_a_wrong_secret_is_a_condition_that_does_not_show_it(
    tmp_path: Path, grid: Grid
) -> None:
    async with vtn() as server, following(tmp_path, grid, server, secret=WRONG) as stub:
        await until(lambda: _has(stub, "GRID_SERVER_AWAY"))
        sentence = await condition(stub, "GRID_SERVER_AWAY")
        assert "token_url" in sentence
        assert WRONG not in sentence

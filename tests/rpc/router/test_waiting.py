"""Requests that can wait over real sockets: how they are marked, held, ended and counted."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cinquefoil.planner.v1 import waiting_pb2
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.net import free_port
from tests.rpc.router.test_openai import texts
from tests.rpc.router.test_openai_passes import said
from tests.support.router.router_service import ScriptedWorker, World, computed, running
from tests.support.waiting import until

INFER = "/v2/models/digits/infer"
LINES = {"path": INFER}
HOUR = 3600.0


def body(*values: float, **parameters: Any) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": list(values or (1,) * 4)}
    return {"inputs": [tensor], "parameters": parameters}


def soon(seconds: float) -> dict[str, str]:
    return {"cinquefoil-wait-until": str(time.time() + seconds)}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A router with HTTP that collects no requests."""
    waiting = {"patience_s": 0, "max_requests": 4}
    async with running(http_listen=f"127.0.0.1:{free_port()}", waiting=waiting) as world:
        yield world


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{world.http}", timeout=20) as made:
        yield made


async def status(world: World) -> router_pb2.WaitingStatus:
    found = await RouterServiceStub(world.channel).GetStatus(router_pb2.GetStatusRequest())
    return found.models[0].waiting


async def test_every_mark_makes_a_request_wait_and_its_receipt_and_reports_say_so(
    world: World, http: httpx.AsyncClient
) -> None:
    """Header, parameter in either form and over gRPC; the planner's load has none of them."""
    worker = await world.worker("a", computed)
    await world.route(worker)
    answers = [
        await http.post(INFER, json=body(), headers=soon(HOUR)),
        await http.post(INFER, json=body(wait_until=time.time() + HOUR)),
        await http.post(INFER, json=body(wait_until="2999-01-01T00:00:00Z")),
    ]
    assert [each.status_code for each in answers] == [200, 200, 400]
    assert "within the next 7 days" in answers[2].json()["error"]
    given = pb.ModelInferRequest(model_name="digits", raw_input_contents=[bytes(16)])
    given.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    given.parameters["wait_until"].int64_param = int(time.time() + HOUR)
    call = GRPCInferenceServiceStub(world.channel).ModelInfer(given)
    answer, trailers = await call, dict(await call.trailing_metadata())

    assert answer.parameters["class"].string_param == "waiting"
    assert trailers["cinquefoil-class"] == answers[0].headers["cinquefoil-class"] == "waiting"
    assert float(trailers["cinquefoil-waited-s"]) >= 0
    assert [work.waiting for work in worker.works] == [True] * 3
    seen = await status(world)
    assert (seen.answered, seen.queued, seen.in_flight) == (3, 0, 0)
    assert seen.energy_j >= seen.marginal_energy_j > 0
    await until(lambda: world.planner.reports[-1].models[0].waiting.answered == 3)
    assert sum(report.models[0].arrivals for report in world.planner.reports) == 0


async def test_the_flex_tier_waits_and_is_answered_as_others(
    world: World, http: httpx.AsyncClient
) -> None:
    worker = await world.worker("a", lambda work: said(work, b'{"usage": {}}', "stop"), credits_=4)
    worker.metadata, worker.decoupled = texts("openai"), True
    await world.route(worker)
    for tier, waits in (("flex", True), ("auto", False), (5, False)):
        wanted: dict[str, Any] = {"model": "digits", "messages": [], "service_tier": tier}
        answer = await http.post("/v1/chat/completions", json=wanted)
        assert answer.status_code == 200
        assert ("class" in answer.json()["usage"]["cinquefoil"]) == waits
    assert [work.waiting for work in worker.works] == [True, False, False]


async def test_a_wrong_time_is_refused_by_its_name(http: httpx.AsyncClient, world: World) -> None:
    await world.route(await world.worker("a", computed))
    for wrong in ("tomorrow", "2026-01-31T18:00:00", "-5", "nan", ""):
        answer = await http.post(INFER, json=body(), headers={"cinquefoil-wait-until": wrong})
        assert (answer.status_code, "cinquefoil-wait-until: must be a time" in answer.text) == (
            400,
            True,
        )
    wrong_parameter = await http.post(INFER, json=body(wait_until=True))
    assert "parameters.wait_until" in wrong_parameter.json()["error"]
    passed = await http.post(INFER, json=body(), headers=soon(-5))
    assert (passed.status_code, passed.headers["cinquefoil-reason"]) == (504, "WAIT_UNTIL")


async def busy(world: World, http: httpx.AsyncClient) -> ScriptedWorker:
    """A worker with one credit that holds an interactive request."""
    worker = await world.worker("a", lambda _: None, credits_=1)
    await world.route(worker)
    world.stack.callback(asyncio.create_task(http.post(INFER, json=body())).cancel)
    await until(lambda: len(worker.works) == 1)
    return worker


async def test_interactive_requests_go_first_and_the_others_end_when_their_time_is_over(
    world: World, http: httpx.AsyncClient
) -> None:
    """One is held beside them without a call to the worker; its error says why it was."""
    worker = await busy(world, http)
    late = await http.post(INFER, json=body(), headers=soon(0.4))
    assert (late.status_code, late.headers["cinquefoil-reason"]) == (504, "WAIT_UNTIL")
    assert "leave no room" in late.json()["error"]
    held = asyncio.create_task(http.post(INFER, json=body(), headers=soon(HOUR)))
    await until_queued(world, 1)
    assert [work.waiting for work in worker.works] == [False]
    worker.finish()
    await until(lambda: len(worker.works) == 2)
    assert worker.works[1].waiting
    worker.finish()
    assert (await held).status_code == 200


async def until_queued(world: World, count: int) -> None:
    async def queued() -> bool:
        return (await status(world)).queued == count

    await until(queued)


async def test_as_many_as_may_wait_do_and_a_client_that_goes_makes_room(
    world: World, http: httpx.AsyncClient
) -> None:
    worker = await busy(world, http)
    calls = [asyncio.create_task(http.post(INFER, json=body(), headers=soon(HOUR))) for _ in "1234"]
    await until_queued(world, 4)
    full = await http.post(INFER, json=body(), headers=soon(HOUR))
    assert (full.status_code, full.headers["cinquefoil-reason"]) == (429, "WAITING_FULL")
    assert "router.waiting.max_requests" in full.json()["error"]
    calls[0].cancel()
    await until_queued(world, 3)
    world.stop.set()
    ended = [await each for each in calls[1:]]
    assert {each.status_code for each in ended} == {503}, "another router takes them"
    worker.finish()


async def test_a_plan_holds_them_and_a_later_one_lets_them_go(
    world: World, http: httpx.AsyncClient
) -> None:
    worker = await world.worker("a", computed)
    cause = waiting_pb2.RELEASE_CAUSE_LATER
    period = waiting_pb2.ReleasePeriod(cause=cause)
    period.since.FromSeconds(int(time.time()) - 10)
    period.until.FromSeconds(int(time.time()) + 7200)
    await world.planner.release(waiting_pb2.WaitingRelease(model="digits", periods=[period]))
    await world.route(worker)  # with which the release is in force
    held = asyncio.create_task(http.post(INFER, json=body(), headers=soon(HOUR)))
    await until_queued(world, 1)
    assert "cleaner hours" in (await status(world)).held_by
    content = json.dumps(body()).encode()
    post = http.post("/v2/waiting/lines", params=LINES, content=content, headers=soon(HOUR))
    of_batch = asyncio.create_task(post)
    await until_queued(world, 2)
    await until(lambda: world.planner.reports[-1].models[0].waiting.queued == 2)
    (single,) = world.planner.reports[-1].models[0].waiting.singles
    assert (single.requests, 3000 < single.due_s <= HOUR) == (1, True), "batches report theirs"
    assert (await http.post(INFER, json=body())).status_code == 200, "others are not held"
    period.fill = True
    await world.planner.release(waiting_pb2.WaitingRelease(model="digits", periods=[period]))
    assert [(await each).status_code for each in (held, of_batch)] == [200, 200]


async def test_many_in_one_call_are_answered_each_as_it_ends(
    world: World, http: httpx.AsyncClient
) -> None:
    """Good and bad lines, each with its status; more than may wait are refused for a while."""
    await world.route(await world.worker("a", computed, credits_=8))
    lines = [json.dumps(body(number, 0, 0, 1)).encode() for number in range(3)] + [b"{not json"]
    answer = await http.post(
        "/v2/waiting/lines", params=LINES, content=b"\n".join(lines), headers=soon(HOUR)
    )
    found = dict(framed(answer.content))
    assert {number: head["status"] for number, (head, _) in found.items()} == {
        0: 200,
        1: 200,
        2: 200,
        3: 400,
    }
    assert json.loads(found[2][1])["outputs"][0]["data"] == [3.0]
    many = await http.post(
        "/v2/waiting/lines", params=LINES, content=b"\n".join(lines[:1] * 9), headers=soon(HOUR)
    )
    statuses = [head["status"] for head, _ in dict(framed(many.content)).values()]
    assert statuses.count(200) >= 4
    assert set(statuses) <= {200, 429}


def framed(content: bytes) -> list[tuple[int, tuple[dict[str, Any], bytes]]]:
    found = []
    while content:
        head, _, content = content.partition(b"\n")
        if head:
            said_ = json.loads(head)
            found.append((said_["line"], (said_, content[: said_["bytes"]])))
            content = content[said_["bytes"] + 1 :]
    return found


@pytest.mark.parametrize(
    ("params", "headers", "content", "why"),
    [
        ({"path": "/v1/files"}, soon(HOUR), b"{}", "path: must be one of"),
        (LINES, {}, b"{}", "cinquefoil-wait-until: required"),
        (LINES, soon(HOUR), b"\n\n", "body: must have 1 to 1024 lines"),
        (LINES, soon(HOUR), b"{}\n" * 1025, "body: must have 1 to 1024 lines"),
        (LINES, soon(HOUR), b"\n" * 1025 + b"{}", "body: must have 1 to 1024 lines"),
    ],
)
async def test_a_wrong_call_of_many_is_refused_whole(
    http: httpx.AsyncClient,
    params: dict[str, str],
    headers: dict[str, str],
    content: bytes,
    why: str,
) -> None:
    answer = await http.post("/v2/waiting/lines", params=params, headers=headers, content=content)
    assert answer.status_code == 400
    assert why in answer.json()["error"]

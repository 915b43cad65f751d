"""The OpenAI API before servers of it: bodies and answers pass as they are, receipts aside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from cinquefoil.gpuagent.v1 import worker_pb2
from inference import grpc_service_pb2 as pb
from services.kit.api_requests import PATHS
from services.kit.net import free_port
from services.router.edge import event_stream
from tests.rpc.router.test_openai import RECEIPT, texts
from tests.support.router.router_service import ScriptedWorker, World, refusal, running
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHUNK = b'data: {"id": "c-1",  "choices": [{"index": 0, "delta": {"content": "h\\u00e9"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
HARMLESS: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
    "logprobs": True,
    "top_logprobs": 3,
    "n": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "logit_bias": {"50256": -100},
    "seed": 2**53,
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": False},
    "service_tier": "auto",
    "metadata": {"a": "b"},
    "store": False,
    "stop_token_ids": [1, 2],
    "guided_json": {"type": "object"},
    "structured_outputs": {"choice": ["a", "b"]},
    "max_completion_tokens": 5,
    "stream_options": None,
    "user": "me",
    "modalities": ["text"],
    "prediction": {"type": "content", "content": "x"},
    "anything": {"a server": "may know", "of": 1e-7},
}


def said(work: worker_pb2.Work, piece: bytes, reason: str = "") -> worker_pb2.Result:
    """A part of what the server says; with a reason: the last."""
    response = pb.ModelInferResponse(model_name="digits")
    response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    response.raw_output_contents.append(len(piece).to_bytes(4, "little") + piece)
    if reason:
        response.parameters["finish_reason"].string_param = reason
    return worker_pb2.Result(
        id=work.id,
        response=response.SerializeToString(),
        more=not reason,
        receipt=RECEIPT if reason else None,
    )


def body_of(work: worker_pb2.Work) -> bytes:
    return pb.ModelInferRequest.FromString(work.request).raw_input_contents[0][4:]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    """A router with an HTTP address."""
    async with running(http_listen=f"127.0.0.1:{free_port()}") as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{world.http}", timeout=10) as made:
        yield made


async def server(world: World, answer: Any) -> ScriptedWorker:
    """Route to a worker before a server of the OpenAI API."""
    made = await world.worker("a", answer, credits_=4)
    made.metadata, made.decoupled = texts("openai"), True
    await world.route(made)
    return made


@pytest.mark.parametrize("path", sorted(PATHS))
async def test_a_body_reaches_the_worker_byte_for_byte_and_so_does_its_answer(
    world: World, http: httpx.AsyncClient, path: str
) -> None:
    """But for the receipt, which is a member of `usage`."""
    answer = b'{"a": [1.0, 1e-07, "\\"usage\\": {"],  "usage": {"prompt_tokens": 5}}'
    worker = await server(world, lambda work: said(work, answer, "stop"))
    messages = [{"role": "tool", "tool_call_id": "1", "content": [{"type": "image_url"}]}]
    body = json.dumps({"model": "digits", "messages": messages, **HARMLESS}, indent=1).encode()
    found = await http.post(path, content=body)

    assert found.status_code == 200, found.text
    assert body_of(worker.works[0]) == body
    before, after = answer.split(b'"prompt_tokens"')
    assert found.content.startswith(before + b'"cinquefoil":{')
    assert found.content.endswith(b',"prompt_tokens"' + after)
    receipt = found.json()["usage"]["cinquefoil"]
    assert (receipt["energy_j"], receipt["plan_version"]) == (3.6, 7)
    assert found.headers["cinquefoil-energy-j"] == "3.6"


@pytest.mark.parametrize("name", HARMLESS)
async def test_no_member_of_a_request_is_refused(
    world: World, http: httpx.AsyncClient, name: str
) -> None:
    """The server decides: of each, the worker sees the value that was sent."""
    worker = await server(world, lambda work: said(work, b"{}", "stop"))
    found = await http.post("/v1/chat/completions", json={"model": "digits", name: HARMLESS[name]})

    assert found.status_code == 200, found.text
    assert json.loads(body_of(worker.works[0]))[name] == HARMLESS[name]


@pytest.mark.parametrize(
    ("tail", "place"),
    [
        (DONE, b': cinquefoil {"model_variant"'),
        (
            b'data: {"choices":[],"usage":{"prompt_tokens":5}}\n\n' + DONE,
            b'"usage":{"cinquefoil":{"model_variant"',
        ),
        (
            b'event: response.completed\ndata: {"response":{"usage":{}}}\n\n',
            b'"usage":{"cinquefoil"',
        ),
        (b"", b": cinquefoil"),
    ],
)
async def test_a_stream_is_the_servers_and_its_receipt_comes_before_the_end(
    world: World, http: httpx.AsyncClient, tail: bytes, place: bytes
) -> None:
    worker = await server(world, lambda _: None)
    wanted = {"model": "digits", "messages": [], "stream": True}
    calling = asyncio.create_task(http.post("/v1/chat/completions", json=wanted))
    await until(lambda: bool(worker.held))
    (work,) = worker.held
    worker.say(said(work, CHUNK), said(work, CHUNK), said(work, tail, "stop"))
    found = await calling

    assert found.headers["Content-Type"] == "text/event-stream"
    assert found.content.startswith(CHUNK + CHUNK)
    rest = found.content.removeprefix(CHUNK + CHUNK)
    assert place in rest
    assert rest.endswith(DONE) == tail.endswith(DONE)
    assert all(line in rest for line in tail.split(b"{")[0].splitlines() if line)
    assert b'"energy_j":3.6' in rest


@pytest.mark.parametrize("silent", [False, True])
async def test_a_server_that_answers_at_once_where_events_were_wanted_is_passed_on(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    """As JSON; once the headers have left, as the only event."""
    monkeypatch.setattr(event_stream, "HEADERS_AFTER_S", 0.05 if silent else 10.0)
    worker = await server(world, lambda _: None)
    wanted = {"model": "digits", "messages": [], "stream": True}
    calling = asyncio.create_task(http.post("/v1/chat/completions", json=wanted))
    await until(lambda: bool(worker.held))
    await asyncio.sleep(0.3 if silent else 0.0)
    worker.say(said(worker.held[0], b'{"choices": [],\n"usage": {}}', "stop"))
    found = await calling

    if silent:
        event, done = found.text.removeprefix(": ping\n\n").split("\n\n", 1)
        assert done == "data: [DONE]\n\n"
        document = json.loads(event.removeprefix("data: "))
    else:
        document = found.json()
    assert document["usage"]["cinquefoil"]["energy_j"] == 3.6


async def test_an_error_of_the_server_keeps_its_words(
    world: World, http: httpx.AsyncClient
) -> None:
    """Its message, parameter and code: clients choose by them what to do."""

    def too_long(work: worker_pb2.Work) -> worker_pb2.Result:
        result = refusal(work, "This model's maximum context length is 5 tokens.")
        result.field, result.reason = "messages", "CONTEXT_LENGTH_EXCEEDED"
        return result

    await server(world, too_long)
    found = await http.post("/v1/chat/completions", json={"model": "digits"})

    assert found.status_code == 400
    assert found.json()["error"] == {
        "message": "This model's maximum context length is 5 tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


async def test_a_request_may_leave_out_the_only_model(
    world: World, http: httpx.AsyncClient
) -> None:
    worker = await server(world, lambda work: said(work, b"{}", "stop"))
    for given in ({}, {"model": None}, {"model": ""}):
        assert (await http.post("/tokenize", json={"prompt": "a"} | given)).status_code == 200
    wrong = await http.post("/tokenize", json={"model": ["digits"]})

    assert len(worker.works) == 3
    assert wrong.json()["error"]["message"] == "model: must be a string"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}", "recursion limit"),
        (b'{"prompt": [' + b"1," * 300_000 + b"1]}", "300002 values, and 262144 at most"),
        (b'{"prompt": [' + b'"",' * 70_000 + b'""]}', "strings, and 65536 at most"),
        (b'{"model": "digits", "accuracy_floor": "high"}', "accuracy_floor: must be a number"),
    ],
)
async def test_a_body_that_is_none_or_too_much_is_refused(
    world: World, http: httpx.AsyncClient, body: bytes, words: str
) -> None:
    await server(world, lambda work: said(work, b"{}", "stop"))
    found = await http.post("/v1/completions", content=body)

    assert found.status_code == 400
    assert words in found.json()["error"]["message"]


async def test_a_prompt_of_many_tokens_or_a_large_picture_passes(
    world: World, http: httpx.AsyncClient
) -> None:
    """A picture is text of a few thousand bytes to the estimate of a KV cache, not of megabytes."""
    worker = await server(world, lambda work: said(work, b"{}", "stop"))
    tokens = {"model": "digits", "prompt": list(range(200_000))}
    url = "data:image/png;base64," + "A" * 2**22
    part = {"type": "image_url", "image_url": {"url": url}}
    picture = {"model": "digits", "messages": [{"role": "user", "content": [part]}]}

    for wanted in (tokens, picture):
        found = await http.post("/v1/chat/completions", json=wanted)
        assert found.status_code == 200, found.text[:300]
    assert json.loads(body_of(worker.works[1])) == picture


async def test_a_full_server_gets_a_request_once_however_many_workers_call_it(
    world: World, http: httpx.AsyncClient
) -> None:
    """Its words pass through; a server of its own is tried next."""

    def full(work: worker_pb2.Work) -> worker_pb2.Result:
        return refusal(work, "the server behind is full", "UNAVAILABLE")

    workers = [await server(world, full) for _ in range(2)]
    for number, each in enumerate(workers):
        each.segment_id, each.server = f"s-{number}", "10.0.0.7:8000"
    await world.route(*workers)
    wanted = {"model": "digits", "messages": []}
    found = await http.post("/v1/chat/completions", json=wanted)
    assert found.status_code == 503
    assert found.json()["error"]["message"] == "the server behind is full"
    assert sum(len(each.works) for each in workers) == 1

    other = await world.worker("b", lambda work: said(work, b"{}", "stop"))
    other.metadata, other.decoupled = texts("openai"), True
    await world.route(*workers, other)
    for _ in range(6):
        assert (await http.post("/v1/chat/completions", json=wanted)).status_code == 200


async def test_an_adapter_is_a_model_whose_requests_go_where_it_is_loaded(
    world: World, http: httpx.AsyncClient
) -> None:
    made = []
    for name, adapters in (("a", ()), ("b", ("sql", "poems")), ("c", ())):
        worker = await world.worker(name, lambda work: said(work, b"{}", "stop"))
        worker.metadata, worker.decoupled, worker.adapters = texts("openai"), True, adapters
        made.append(worker)
    await world.route(*made)
    for _ in range(9):
        found = await http.post("/v1/chat/completions", json={"model": "sql", "messages": []})
        assert found.status_code == 200, found.text
    listed = (await http.get("/v1/models")).json()["data"]
    one = (await http.get("/v1/models/poems")).json()
    unknown = await http.post("/v1/chat/completions", json={"model": "prose"})

    assert [len(each.works) for each in made] == [0, 9, 0]
    assert json.loads(body_of(made[1].works[0]))["model"] == "sql"
    assert [(each["id"], each.get("parent")) for each in listed] == [
        ("digits", None),
        ("poems", "digits"),
        ("sql", "digits"),
    ]
    assert one["parent"] == "digits"
    assert unknown.status_code == 404


async def test_probes_of_load_testers_are_answered(world: World, http: httpx.AsyncClient) -> None:
    """As vLLM has them: health, version, metrics."""
    await world.route()
    none = await http.get("/health")
    await server(world, lambda work: said(work, b"{}", "stop"))
    await http.post("/v1/completions", json={"model": "digits", "prompt": "a"})
    metrics = await http.get("/metrics")

    assert none.status_code == 503
    assert (await http.get("/health")).status_code == 200
    assert (await http.get("/version")).json()["version"][0].isdigit()
    assert "cinquefoil_output_tokens_total" in metrics.text

"""The OpenAI API before models of tensors: an unmodified client against scripted workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
import pytest_asyncio

from cinquefoil.gpuagent.v1 import worker_pb2
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.net import free_port
from services.kit.rpc.status import from_wire
from services.router.edge import event_stream
from tests.support.router.router_client import queued
from tests.support.router.router_service import ScriptedWorker, World, refusal, running
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

if TYPE_CHECKING:
    from openai import AsyncOpenAI

RECEIPT = worker_pb2.Receipt(
    energy_j=3.6, energy_method="model", input_tokens=5, output_tokens=2, first_token_s=0.1
)


@pytest.fixture(scope="module", autouse=True)
def _import_the_client() -> None:
    """Import it before a loop runs, but not in every process that collects: it takes seconds."""
    import openai  # noqa: F401


def texts(platform: str = "python") -> pb.ModelMetadataResponse:
    described = pb.ModelMetadataResponse.TensorMetadata
    return pb.ModelMetadataResponse(
        versions=["1"],
        platform=platform,
        inputs=[described(name="text_input", datatype="BYTES", shape=[1])],
        outputs=[described(name="text_output", datatype="BYTES", shape=[1])],
    )


def text(work: worker_pb2.Work, said: str, reason: str = "") -> worker_pb2.Result:
    """A part of an answer; with a reason: the last."""
    response = pb.ModelInferResponse(model_name="digits")
    response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    response.raw_output_contents.append(len(said).to_bytes(4, "little") + said.encode())
    if reason:
        response.parameters["finish_reason"].string_param = reason
    return worker_pb2.Result(
        id=work.id,
        response=response.SerializeToString(),
        more=not reason,
        receipt=RECEIPT if reason else None,
    )


def repeated(work: worker_pb2.Work) -> worker_pb2.Result:
    """Answer with the prompt."""
    request = pb.ModelInferRequest.FromString(work.request)
    return text(work, request.raw_input_contents[0][4:].decode(), "stop")


async def language(world: World, answer: Any = repeated, *, credits_: int = 4) -> ScriptedWorker:
    """Route to a worker that generates text."""
    made = await world.worker("a", answer, credits_=credits_)
    made.metadata, made.decoupled = texts(), True
    await world.route(made)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    """A router with an HTTP address."""
    async with running(http_listen=f"127.0.0.1:{free_port()}") as world:
        yield world


async def client(world: World) -> AsyncOpenAI:
    from openai import AsyncOpenAI

    made = AsyncOpenAI(base_url=f"http://{world.http}/v1", api_key="none", max_retries=0)
    return await world.stack.enter_async_context(made)


def prompt_and_parameters(held: worker_pb2.Work) -> tuple[str, dict[str, Any]]:
    """Return the prompt and the parameters that the worker was sent."""
    request = pb.ModelInferRequest.FromString(held.request)
    parameters = {
        key: getattr(value, str(value.WhichOneof("parameter_choice")))
        for key, value in request.parameters.items()
    }
    return request.raw_input_contents[0][4:].decode(), parameters


async def test_a_completion_has_its_text_usage_and_receipt(world: World) -> None:
    worker = await language(world)
    api = await client(world)
    answer = await api.completions.with_raw_response.create(
        *(), model="digits", prompt="hello", max_tokens=7, temperature=0, seed=3, stop=["a", "b"]
    )
    found = answer.parse()

    assert answer.headers["cinquefoil-energy-j"] == "3.6"
    assert answer.headers["cinquefoil-plan"] == "7"
    assert (found.choices[0].text, found.choices[0].finish_reason) == ("hello", "stop")
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (5, 2)
    assert found.usage.total_tokens == 7
    receipt = (found.usage.model_extra or {})["cinquefoil"]
    assert receipt["energy_j"] == 3.6
    assert receipt["carbon_gco2e"] == 0.0015
    assert receipt["model_variant"] == "variant-a"
    assert receipt["plan_version"] == 7
    assert prompt_and_parameters(worker.works[0]) == (
        "hello",
        {
            "chat": False,
            "max_tokens": 7,
            "temperature": 0.0,
            "seed": 3,
            "stop_sequences": '["a","b"]',
        },
    )


async def test_a_stream_ends_with_its_reason_and_its_usage(world: World) -> None:
    """Text leaves as the worker gives it; usage comes only where it is wanted."""
    worker = await language(world, lambda _: None)
    api = await client(world)
    stream = await asyncio.gather(
        api.completions.create(
            model="digits",
            prompt="hello",
            stream=True,
            stream_options={"include_usage": True},
        ),
        begin(worker),
    )
    pieces = [await anext(stream[0])]
    worker.say(text(worker.held[0], "lo"), text(worker.held[0], "!", "length"))
    pieces += [piece async for piece in stream[0]]

    assert [piece.choices[0].text for piece in pieces[:-1]] == ["hel", "lo", "!"]
    assert pieces[-2].choices[0].finish_reason == "length"
    assert pieces[-1].choices == []
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens == 2
    assert (pieces[-1].usage.model_extra or {})["cinquefoil"]["energy_j"] == 3.6


async def begin(worker: ScriptedWorker) -> None:
    """Send the first part of the answer to what the worker holds."""
    await until(lambda: bool(worker.held))
    worker.say(text(worker.held[0], "hel"))


async def test_a_client_that_leaves_a_stream_stops_the_generation(world: World) -> None:
    worker = await language(world, lambda _: None)
    api = await client(world)
    stream, _ = await asyncio.gather(
        api.completions.create(model="digits", prompt="hello", stream=True), begin(worker)
    )
    assert (await anext(stream)).choices[0].text == "hel"
    await stream.close()

    await until(lambda: worker.cancelled == [worker.held[0].id])


async def test_an_error_before_the_first_text_has_a_status_even_in_a_stream(world: World) -> None:
    await language(world, lambda work: refusal(work, "the prompt is too long"))
    api = await client(world)

    import openai

    with pytest.raises(openai.BadRequestError, match="the prompt is too long"):
        await api.completions.create(model="digits", prompt="hello", stream=True)


async def test_an_error_in_the_middle_of_a_stream_is_an_event(world: World) -> None:
    worker = await language(world, lambda _: None)
    api = await client(world)
    stream, _ = await asyncio.gather(
        api.completions.create(model="digits", prompt="hello", stream=True), begin(worker)
    )
    worker.say(refusal(worker.held[0], "the model failed", "INTERNAL"))

    import openai

    with pytest.raises(openai.APIError, match="the model failed"):
        _ = [piece async for piece in stream]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "code"), [("RESOURCE_EXHAUSTED", 429), ("UNAVAILABLE", 503)])
async def test_what_a_full_server_says_passes_through_at_its_first_try(
    world: World, status: str, code: int, stream: bool
) -> None:
    """Its status, words and time to retry: there is one instance, so it gets a request once."""

    def full(work: worker_pb2.Work) -> worker_pb2.Result:
        refused = refusal(work, "the server behind is full", status)
        refused.retry_after_s = 7.0
        return refused

    worker = await language(world, full)
    async with httpx.AsyncClient(base_url=f"http://{world.http}/v1") as http:
        body = {"model": "digits", "prompt": "hello", "stream": stream}
        answer = await http.post("/completions", json=body)
    request = pb.ModelInferRequest.FromString(worker.works[0].request)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await GRPCInferenceServiceStub(world.channel).ModelInfer(request)

    error = from_wire(refused.value)
    assert (answer.status_code, answer.headers["Retry-After"]) == (code, "7")
    assert answer.json()["error"]["message"] == error.message == "the server behind is full"
    assert (error.status, error.retry_after_s) == (status, 7.0)
    assert len(worker.works) == 2, "of two requests"


async def test_a_silent_stream_sends_its_headers_soon_and_comments_until_it_has_text(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no proxy takes it for dead; an error after that is an event."""
    monkeypatch.setattr(event_stream, "PING_AFTER_S", 0.05)
    worker = await language(world, lambda _: None)
    body = {"model": "digits", "prompt": "hello", "stream": True}
    http = await world.stack.enter_async_context(httpx.AsyncClient())
    async with http.stream("POST", f"http://{world.http}/v1/completions", json=body) as answer:
        lines = answer.aiter_lines()
        comments = [await anext(lines) for _ in range(6)]
        worker.say(text(worker.held[0], "hel"))
        first = await skipped(lines)
        worker.say(refusal(worker.held[0], "the model failed", "INTERNAL"))
        last = await skipped(lines)

    assert comments == [": ping", ""] * 3
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert json.loads(first)["choices"][0]["text"] == "hel"
    assert json.loads(last)["error"]["message"] == "the model failed"


async def skipped(lines: AsyncIterator[str]) -> str:
    """Return the data of the next event; comments before it are skipped."""
    async for line in lines:
        if line.startswith("data: "):
            return line.removeprefix("data: ")
    raise AssertionError("no event")


async def test_models_lists_those_that_generate_text(world: World) -> None:
    await language(world)
    api = await client(world)

    assert [model.id for model in (await api.models.list()).data] == ["digits"]
    assert (await api.models.retrieve("digits")).owned_by == "cinquefoil"
    import openai

    with pytest.raises(openai.NotFoundError, match="no model 'nothing'") as caught:
        await api.models.retrieve("nothing")
    assert caught.value.code == "model_not_found"


async def test_what_a_model_of_tensors_cannot_do_is_refused_by_name(world: World) -> None:
    """`logprobs: 0` requests the tokens' own; null and values that change nothing are accepted."""
    await language(world)
    http = await world.stack.enter_async_context(httpx.AsyncClient(timeout=10))
    wanted = {"model": "digits", "prompt": "hello"}

    async def refused(**changes: Any) -> dict[str, Any]:
        answer = await http.post(f"http://{world.http}/v1/completions", json=wanted | changes)
        assert answer.status_code == 400, answer.text
        error: dict[str, Any] = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        return error

    assert (await refused(tools=[{}]))["message"] == "tools: unknown field"
    assert (await refused(tools=[{}]))["param"] == "tools"
    assert (await refused(tools=[{}]))["code"] == "unsupported"
    assert "n: must be 1" in (await refused(n=2))["message"]
    assert (await refused(logprobs=0))["param"] == "logprobs"
    assert (await refused(temperature="hot"))["param"] == "temperature"
    assert (await refused(stop=["a", 3]))["message"] == "stop[1]: must be a valid string"
    neutral = wanted | {"n": 1, "tools": None, "logprobs": None, "echo": False}
    ok = await http.post(f"http://{world.http}/v1/completions", json=neutral)
    assert ok.status_code == 200


async def test_a_model_without_text_and_one_without_template_say_what_to_call(world: World) -> None:
    api = await client(world)
    await world.route(await world.worker("tensors"))
    import openai

    with pytest.raises(openai.BadRequestError, match="/v2/models/digits/infer"):
        await api.completions.create(model="digits", prompt="hello")
    foreign = await world.worker("foreign", repeated)
    foreign.metadata, foreign.decoupled = texts("triton"), True
    await world.route(foreign)
    import openai

    with pytest.raises(openai.BadRequestError, match="use /v1/completions"):
        await api.chat.completions.create(
            model="digits", messages=[{"role": "user", "content": "hello"}]
        )
    assert (await api.completions.create(model="digits", prompt="a")).choices[0].text == "a"


async def test_overload_is_a_rate_limit_error_with_the_time_to_wait(world: World) -> None:
    await language(world, lambda _: None, credits_=1)
    api = await client(world)
    async with asyncio.TaskGroup() as tasks:
        waiting = [
            tasks.create_task(api.completions.create(model="digits", prompt="a")) for _ in range(4)
        ]
        await queued(world, 3)
        import openai

        with pytest.raises(openai.RateLimitError) as caught:
            await api.completions.create(model="digits", prompt="a")
        for task in waiting:
            task.cancel()

    assert int(caught.value.response.headers["retry-after-ms"]) > 0

"""Workers whose language model a server of the OpenAI API runs."""

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import pytest
import pytest_asyncio

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from inference import grpc_service_pb2 as oip
from services.kit.config import OpenAiRuntime
from services.kit.net import free_port
from tests.support.paths import SUPPORT
from tests.support.worker.language_worker import prompt, results, text_of
from tests.support.worker.worker_process import (
    Router,
    Running,
    routed,
    until,
    work,
    worker,
    worker_spec,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVER = SUPPORT / "openai_server.py"
HOW: Final[Mapping[str, Any]] = {"kind": "openai", "slots": 2, "chat": False}


def counting(fault: Path) -> OpenAiRuntime:
    """Return the runtime of the tests' own server, with a key of each worker's own."""
    command = (sys.executable, str(SERVER), "{port}", str(fault))
    return OpenAiRuntime(**HOW, command=command, environment={"VLLM_API_KEY": "{api_key}"})


def in_parts(number: int, request: oip.ModelInferRequest) -> pb.Work:
    return pb.Work(id=number, request=request.SerializeToString(), in_parts=True)


def chat(text: str, *history: Mapping[str, str]) -> oip.ModelInferRequest:
    request = prompt(text, 2)
    request.parameters["chat"].bool_param = True
    request.parameters["messages"].string_param = json.dumps(history)
    return request


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Running]:
    server = counting(folder / "fault")
    spec = worker_spec(folder, folder / "no-file", runtime=server)
    async with worker(spec) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Running, Path]]:
    """A worker of two slots with its server, and the file of the server's faults."""
    folder = tmp_path_factory.mktemp("openai")
    async with serving(folder) as found:
        yield found, folder / "fault"


@pytest_asyncio.fixture(loop_scope="module")
async def router(running: tuple[Running, Path]) -> AsyncIterator[Router]:
    running[1].unlink(missing_ok=True)
    async with routed(running[0].spec.listen) as found:
        yield found


async def test_text_streams_with_its_tokens_times_and_energy(router: Router) -> None:
    """Whole and in parts: the same text; usage is the server's, and what it had cached is free."""
    whole = await router.infer(prompt("1 2 3", 4), 1)
    await router.send(in_parts(2, prompt("1 2 3", 4)))
    *parts, last = await results(router, lambda found: [r for r in found if not r.more])

    assert (router.hello.credits, router.hello.decoupled) == (2, True)
    assert router.hello.kv_tokens_per_credit == 16 * 1024 // 2, "the server's cache, for two slots"
    assert text_of(whole.response) == " 4 5 6 7"
    assert [text_of(part.response) for part in parts] == [" 4", " 5", " 6", " 7"]
    for result in (whole, last):
        answer = oip.ModelInferResponse.FromString(result.response)
        assert answer.parameters["finish_reason"].string_param == "length"
        assert (result.receipt.input_tokens, result.receipt.output_tokens) == (3, 4)
        assert result.receipt.first_token_s > 0
        assert result.receipt.energy_j > 0


async def test_reasoning_is_a_parameter_beside_the_text(
    router: Router, running: tuple[Running, Path]
) -> None:
    """In the parts before the text, and of a whole answer; its first token is the answer's."""
    running[1].write_text("think")
    await router.send(in_parts(1, chat("1 2")))
    *parts, last = await results(router, lambda found: [r for r in found if not r.more])
    whole = await router.infer(chat("1 2"), 2)
    running[1].unlink()

    assert [text_of(part.response) for part in parts] == ["", "", " 3", " 4"]
    assert [reasoning_of(part) for part in (*parts, last)] == ["Let", " me count.", "", "", ""]
    assert (text_of(whole.response), reasoning_of(whole)) == (" 3 4", "Let me count.")
    assert whole.receipt.first_token_s > 0


def reasoning_of(result: pb.Result) -> str:
    found = oip.ModelInferResponse.FromString(result.response)
    return found.parameters["reasoning_content"].string_param


def passing(path: str, **body: Any) -> oip.ModelInferRequest:
    """Return a request of the OpenAI API that passes as it is."""
    content = json.dumps(body).encode()
    request = oip.ModelInferRequest(model_name="m", id="q")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(content).to_bytes(4, "little") + content)
    request.parameters["openai_path"].string_param = path
    return request


@pytest.mark.parametrize(
    "options",
    [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_that_passes_is_the_server_s_byte_for_byte(
    router: Router, running: tuple[Running, Path], path: str, options: dict[str, bool]
) -> None:
    """With its tokens, times and energy, whatever the client wants of usage."""
    parts = [{"type": "text", "text": "1 2"}, {"type": "text", "text": "3"}]
    body = {"messages": [{"role": "user", "content": parts}], "prompt": "1 2 3", "max_tokens": 4}
    body |= {"stream": True, "stream_options": options}
    body.pop("prompt" if "chat" in path else "messages")
    await router.send(in_parts(1, passing(path, model="m", **body)))
    *pieces, last = await results(router, lambda found: [r for r in found if not r.more])
    async with aiohttp.ClientSession(server_of(running[0])) as session:
        key = {"Authorization": f"Bearer {key_of(running[0])}"}
        async with session.post(path, json=body, headers=key) as answer:
            direct = await answer.read()

    assert "".join(text_of(each.response) for each in (*pieces, last)).encode() == direct
    assert (last.receipt.input_tokens, last.receipt.output_tokens) == (3, 4)
    assert last.receipt.first_token_s > 0
    assert last.receipt.energy_j > 0
    assert len(pieces) == 3, "each token as it comes, the last with the end"


async def test_an_answer_that_comes_at_once_passes_as_it_is(router: Router) -> None:
    """Its tokens are the server's; when the first came is not known, and not stated."""
    messages = [{"role": "user", "content": "1 2 3"}]
    wanted = {"messages": messages, "max_tokens": 4, "tools": [], "seed": 2**60, "logit_bias": {}}
    found = await router.infer(
        passing("/v1/chat/completions", model="m", accuracy_floor=1, **wanted)
    )
    document = json.loads(text_of(found.response))

    assert document["choices"][0]["message"]["content"] == " 4 5 6 7"
    assert document["sent"] == {"model": "Qwen/Qwen3-8B", **wanted}
    answer = oip.ModelInferResponse.FromString(found.response)
    assert answer.parameters["finish_reason"].string_param == "length"
    assert (found.receipt.input_tokens, found.receipt.output_tokens) == (3, 4)
    assert found.receipt.first_token_s == 0
    assert found.receipt.cached_tokens == 1
    assert found.receipt.energy_j > 0


async def test_what_the_server_lacks_and_refuses_it_says_itself(router: Router) -> None:
    lacks = await router.infer(passing("/v1/embeddings", model="m", input="a"), 1)
    refused = await router.infer(passing("/v1/completions", prompt="1", max_tokens=4096), 2)

    assert lacks.status == "NOT_FOUND"
    assert refused.status == "INVALID_ARGUMENT"
    assert refused.message == "This model's maximum context length is 4096 tokens."


async def test_a_conversation_reaches_the_server_with_its_history(router: Router) -> None:
    result = await router.infer(chat("7", {"role": "system", "content": "Count"}))

    assert text_of(result.response) == " 8 9"
    assert result.receipt.input_tokens == 2


async def test_the_server_s_context_is_the_limit(router: Router) -> None:
    """The server's `max_model_len` bounds `max_tokens`; the server refuses what is too long."""
    beyond = await router.infer(prompt("1", 4097), 1)
    refused = await router.infer(prompt("1", 4096), 2)

    assert (beyond.status, refused.status) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert "parameters.max_tokens must be an integer from 1 to 4096" in beyond.message
    assert "maximum context length is 4096 tokens" in refused.message


async def test_a_full_server_sends_requests_elsewhere(
    router: Router, running: tuple[Running, Path]
) -> None:
    running[1].write_text("full")
    result = await router.infer(prompt("1", 2))

    assert result.status == "UNAVAILABLE"
    assert "The engine is overloaded" in result.message


async def test_a_cancelled_request_is_closed_at_the_server(
    router: Router, running: tuple[Running, Path]
) -> None:
    """The server hangs after a token; its slot here is free for the next request."""
    running[1].write_text("hang")
    await router.send(in_parts(1, prompt("1", 100)), in_parts(2, prompt("5", 100)))
    await results(router, lambda found: {1, 2} <= {result.id for result in found})
    running[1].unlink()
    await router.send(work(3, prompt("7", 1)), cancelled=[1])
    (third,) = await router.wait_for(3)
    await router.send(cancelled=[2])

    assert text_of(third.response) == " 8"
    await until_aborted(running[0], 2)


def _server_process(found: Running) -> psutil.Process:
    (server,) = [
        child
        for child in psutil.Process(found.process.pid).children(recursive=True)
        if str(SERVER) in child.cmdline()
    ]
    return server


def server_of(found: Running) -> str:
    """Return the address of a worker's server."""
    command = _server_process(found).cmdline()
    return f"http://127.0.0.1:{command[command.index(str(SERVER)) + 1]}"


def key_of(found: Running) -> str:
    """Return the key of a worker's server."""
    return _server_process(found).environ()["VLLM_API_KEY"]


async def until_aborted(found: Running, number: int) -> None:
    """Wait until the server has seen so many requests closed."""
    async with aiohttp.ClientSession(server_of(found)) as session:
        aborted = 0
        while aborted < number:
            async with session.get("/aborted") as answer:
                aborted = await answer.json()


async def test_a_queue_at_the_server_holds_further_requests_here(
    router: Router, running: tuple[Running, Path]
) -> None:
    """With one of its own in flight; and the agent sees the server's queue and KV cache."""
    worker_, fault = running
    fault.write_text("hang")
    await router.send(in_parts(1, prompt("1", 100)))
    await results(router, bool)
    fault.write_text("queue")
    await until(lambda: worker_.counters.slot(0).server_waiting == 3)
    await router.send(work(2, prompt("7", 1)))
    held = await router.infer(prompt("", 1), 3)
    assert 2 not in router.results
    fault.unlink()
    (second,) = await router.wait_for(2)
    await router.send(cancelled=[1])

    assert held.status == "INVALID_ARGUMENT"
    assert text_of(second.response) == " 8"
    assert worker_.counters.slot(0).server_kv_cache_ratio == 0.25


async def test_a_server_that_dies_loses_only_what_it_had_begun(tmp_path: Path) -> None:
    """UNAVAILABLE requests are answered elsewhere; the worker ends with its server."""
    async with serving(tmp_path) as found, routed(found.spec.listen) as router:
        (tmp_path / "fault").write_text("die")
        result = await router.infer(prompt("1", 5))
        status = await found.exit_status()

    assert result.status == "UNAVAILABLE"
    assert status == 1


async def test_a_running_server_is_called_with_the_key_of_its_file(tmp_path: Path) -> None:
    """The key is in no spec; a worker with another key never becomes ready."""
    port = free_port()
    (tmp_path / "key").write_text("s3cret\n")
    server = psutil.Popen(
        [sys.executable, str(SERVER), str(port), str(tmp_path / "fault")],
        env={"VLLM_API_KEY": "s3cret"},
    )
    at = OpenAiRuntime(**HOW, address=f"127.0.0.1:{port}", api_key_file=tmp_path / "key")
    spec = worker_spec(tmp_path, tmp_path / "no-file", runtime=at)
    try:
        async with worker(spec), routed(spec.listen) as router:
            result = await router.infer(prompt("1", 2))
        assert server.is_running()
    finally:
        server.kill()
        server.wait()

    assert text_of(result.response) == " 2 3"
    assert "s3cret" not in (tmp_path / "worker-0.json").read_text()


async def test_adapters_are_loaded_and_requests_for_others_go_elsewhere(tmp_path: Path) -> None:
    """The server is sent the adapter's name; a worker whose server cannot load one ends.

    One that ranks requests is sent those that can wait behind all others, whatever they say.
    """
    changes = {"adapters": {"sql": "/srv/sql"}, "priorities": True}
    server = counting(tmp_path / "fault").model_copy(update=changes)
    spec = worker_spec(tmp_path, tmp_path / "no-file", runtime=server)
    message = {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1}
    async with worker(spec) as running, routed(spec.listen) as router:
        assert list(router.hello.adapters) == ["sql"]
        assert router.hello.server == "", "its own"
        loaded = await router.infer(passing("/v1/chat/completions", model="sql", **message), 1)
        lacks = await router.infer(passing("/v1/chat/completions", model="poems", **message), 2)
        late = passing("/v1/chat/completions", model="sql", priority=-5, **message)
        await router.send(pb.Work(id=3, request=late.SerializeToString(), waiting=True))
        (ranked,) = await results(router, lambda found: found)
        assert running.process.returncode is None
    broken = server.model_copy(update={"adapters": {"a": "no-such"}})
    (tmp_path / "broken").mkdir()
    spec = worker_spec(tmp_path / "broken", tmp_path / "no-file", runtime=broken)
    async with worker(spec) as ending:
        assert await ending.exit_status() == 1

    sent, ranked_sent = (json.loads(text_of(each.response))["sent"] for each in (loaded, ranked))
    assert (sent["model"], "priority" in sent) == ("sql", False)
    assert ranked_sent["priority"] == 1000
    assert (lacks.status, "no adapter 'poems'" in lacks.message) == ("UNAVAILABLE", True)

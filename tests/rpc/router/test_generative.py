"""A language model from end to end: Triton client, router, worker process, llama.cpp."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cinquefoil.planner.v1 import plan_pb2
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config.predictor import Predictor, PromptCache
from services.kit.net import free_port
from services.predictor.app import run as predictor
from tests.support.cli.fake_services import cinquefoil
from tests.support.paths import ROOT, SUPPORT
from tests.support.router.router_service import deployment, running
from tests.support.waiting import until
from tests.support.worker.language_worker import HOSTILE, needs_llama, prompt, text_spec
from tests.support.worker.worker_process import worker

if TYPE_CHECKING:
    from inference.grpc_service_pb2_grpc import GRPCInferenceServiceAsyncStub

pytestmark = needs_llama

PROGRAM = SUPPORT / "router/tritonclient_texts.py"
EXAMPLE = ROOT / "examples" / "generative" / "cinquefoil.yaml"
PROMPT = "1 2 3 4 5 6 7 8 9 10 11 12"


@pytest.fixture(scope="module", autouse=True)
def _import_the_client() -> None:
    """Import it before a loop runs, but not in every process that collects: it takes seconds."""
    import openai  # noqa: F401


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Everything the clients saw; one chain of processes for all tests."""
    return asyncio.run(look(tmp_path_factory.mktemp("generative")))


async def look(folder: Path) -> Mapping[str, Any]:
    spec = text_spec(folder).model_copy(update={"model": "digits"})
    async with (
        predicting(folder) as port,
        running(
            max_queue=100,
            predictor=f"127.0.0.1:{port}",
            http_listen=f"127.0.0.1:{free_port()}",
        ) as world,
        worker(spec),
    ):
        world.planner.discipline = "ssjf"
        instance = plan_pb2.Instance(
            endpoint=spec.listen, segment_id="s-1", variant="v", share=1.0, zone="US-CAL", pue=1.5
        )
        await world.planner.route(instance)
        stub: GRPCInferenceServiceAsyncStub = GRPCInferenceServiceStub(world.channel)

        async def ready() -> bool:
            return (await stub.ModelReady(pb.ModelReadyRequest(name="digits"))).ready

        await until(ready, 20)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(PROGRAM, world.address, PROMPT),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        found: Mapping[str, Any] = json.loads(output)
        return {
            **found,
            **await cli_answers(folder, world.address),
            **await hostile_answers(stub),
            **await openai_answers(world.http),
        }


async def openai_answers(address: str) -> Mapping[str, Any]:
    """Answers to an unmodified OpenAI client: a text, whole and streamed, and two talks."""
    from openai import AsyncOpenAI

    how: dict[str, Any] = {"model": "digits", "max_tokens": 4, "temperature": 0}
    talk: list[Any] = [{"role": "user", "content": PROMPT}]
    system: list[Any] = [{"role": "system", "content": "You count."}]
    async with AsyncOpenAI(base_url=f"http://{address}/v1", api_key="none") as api:
        whole = await api.completions.create(prompt=PROMPT, **how)
        stream = await api.completions.create(prompt=PROMPT, stream=True, **how)
        streamed = "".join([piece.choices[0].text async for piece in stream])
        talks = [
            await api.chat.completions.create(messages=messages, **how)
            for messages in (talk, system + talk)
        ]
    return {"openai": {"whole": whole, "streamed": streamed, "talks": talks}}


@asynccontextmanager
async def predicting(folder: Path) -> AsyncIterator[int]:
    """Run the real predictor while the block runs; yield its port."""
    section = Predictor(listen="127.0.0.1:0", cache=PromptCache(file=folder / "prompts.sqlite3"))
    described = deployment(1, 1).model_copy(update={"predictor": section})
    stop, ports = asyncio.Event(), asyncio.Queue[int]()
    task = asyncio.create_task(predictor(described, stop, ports.put_nowait))
    try:
        yield await ports.get()
    finally:
        stop.set()
        await task


async def hostile_answers(stub: GRPCInferenceServiceAsyncStub) -> Mapping[str, Any]:
    """Send hostile prompts, all at once: there are three slots, and the predictor is queried."""

    async def infer(text: str | bytes) -> str:
        request = prompt(text, 3)
        request.model_name = "digits"
        try:
            await stub.ModelInfer(request, timeout=60)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return ""

    statuses = await asyncio.gather(*map(infer, [*HOSTILE, "y" * 2**21]))
    statistics = await stub.ModelStatistics(pb.ModelStatisticsRequest(name="digits"))
    return {"hostile": statuses, "misses": statistics.model_stats[0].inference_stats.cache_miss}


async def cli_answers(folder: Path, address: str) -> Mapping[str, Any]:
    """Run `cinquefoil infer --prompt` three ways."""
    config = folder / "cinquefoil.yaml"
    config.write_text(EXAMPLE.read_text().replace("127.0.0.1:8664", address))
    to = ("infer", "digits", "-c", config, "--prompt", PROMPT)
    sampling = ("--max-tokens", "12", "--temperature", "0")
    return {
        "shown": await cinquefoil(*to, *sampling),
        "as_json": await cinquefoil(*to, *sampling, "--json"),
        "shown_error": await cinquefoil(*to, "--max-tokens", "0"),
    }


def test_tokens_stream_and_add_up_to_the_unary_answer(seen: Mapping[str, Any]) -> None:
    assert len(seen["texts"]) > 6
    assert "".join(seen["texts"]) == seen["whole"] != ""
    final = [given["triton_final_response"] for given in seen["parameters"]]
    assert final == [False] * (len(final) - 1) + [True]


def test_the_last_response_says_what_the_tokens_took(seen: Mapping[str, Any]) -> None:
    """Streamed or not: usage, times, and energy and carbon per token, which add up."""
    for given in (seen["parameters"][-1], seen["whole_parameters"]):
        assert int(given["output_tokens"]) == 12
        assert int(given["input_tokens"]) > 12
        assert given["finish_reason"] == "length"
        assert min(given["first_token_s"], given["token_s"]) > 0
        total_j = given["energy_j"] + given["energy_idle_j"]
        assert given["energy_active_j_per_token"] * 12 == pytest.approx(given["energy_j"])
        assert given["energy_total_j_per_token"] * 12 == pytest.approx(total_j)
        total = given["carbon_total_gco2e"]
        assert given["carbon_active_gco2e_per_token"] * 12 == pytest.approx(given["carbon_gco2e"])
        assert given["carbon_total_gco2e_per_token"] * 12 == pytest.approx(total)
        assert total / given["carbon_gco2e"] == pytest.approx(total_j / given["energy_j"])
    assert all("input_tokens" not in given for given in seen["parameters"][:-1])


def test_what_cannot_be_is_refused_by_the_fields_name(seen: Mapping[str, Any]) -> None:
    (error,) = seen["errors"]

    assert "parameters.max_tokens must be an integer from 1 to 512, got '0'" in error
    assert seen["refused"].startswith("StatusCode.INVALID_ARGUMENT: raw_input_contents[0]")


def test_the_model_describes_itself_and_is_counted(seen: Mapping[str, Any]) -> None:
    metadata = seen["metadata"]
    (statistics,) = seen["statistics"]["model_stats"]

    assert metadata["platform"] == "llama.cpp"
    assert metadata["inputs"] == [{"name": "text_input", "datatype": "BYTES", "shape": ["1"]}]
    assert metadata["outputs"] == [{"name": "text_output", "datatype": "BYTES", "shape": ["1"]}]
    assert statistics["inference_count"] == statistics["execution_count"] == "2"


def test_hostile_prompts_end_in_an_answer_or_a_refusal_and_their_lengths_are_predicted(
    seen: Mapping[str, Any],
) -> None:
    """Through router, predictor and worker: none fails, hangs or ends a process."""
    assert seen["hostile"] == [*HOSTILE.values(), "INVALID_ARGUMENT"]
    assert seen["misses"].count > 0
    assert seen["misses"].ns > 0


def test_the_command_line_shows_the_text_and_what_it_cost(seen: Mapping[str, Any]) -> None:
    shown, as_json, error = seen["shown"], seen["as_json"], seen["shown_error"]

    assert (shown.status, shown.err) == (0, "")
    assert shown.out.startswith(seen["whole"])
    assert "tokens: " in shown.out
    assert " in, 12 out; the first after " in shown.out
    assert json.loads(as_json.out)["outputs"] == {"text_output": [seen["whole"]]}
    assert error.status == 1
    assert "parameters.max_tokens must be an integer from 1 to 512" in error.err


def test_an_openai_client_gets_the_same_text_whole_and_streamed(seen: Mapping[str, Any]) -> None:
    found = seen["openai"]

    assert found["whole"].choices[0].finish_reason == "length"
    assert found["whole"].usage.completion_tokens == 4
    assert found["streamed"] == found["whole"].choices[0].text != ""


def test_the_chat_template_gets_the_messages_before_the_last(seen: Mapping[str, Any]) -> None:
    alone, after_system = seen["openai"]["talks"]

    assert alone.choices[0].message.role == "assistant"
    assert after_system.usage.prompt_tokens != alone.usage.prompt_tokens

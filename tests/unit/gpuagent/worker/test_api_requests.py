"""Requests of the OpenAI API that pass to a server: what it is sent, and what of it comes back."""

import json
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from itertools import product
from typing import Any, Final, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import grpc_service_pb2 as pb
from services.gpuagent.worker.generative import llama_members
from services.gpuagent.worker.generative.api_requests import (
    ApiRequest,
    Passage,
    read,
    without_usage,
)
from services.gpuagent.worker.generative.server_answers import Progress, ServerAnswers
from services.kit import api_requests
from services.kit.config import OpenAiRuntime
from services.kit.errors import InvalidArgument, ServiceError
from tests.support.examples import examples

R = TypeVar("R")

DONE: Final = b"data: [DONE]\n\n"
RUNTIME = OpenAiRuntime(kind="openai", address="127.0.0.1:1")
CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"usage": {"a": 1}, '}}


def request(
    body: Mapping[str, Any], path: str = "/v1/chat/completions", runtime: OpenAiRuntime = RUNTIME
) -> ApiRequest:
    """Return what a worker makes of a body."""
    content = json.dumps(body).encode()
    made = pb.ModelInferRequest(model_name="m", id="7")
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    made.raw_input_contents.append(len(content).to_bytes(4, "little") + content)
    made.parameters[api_requests.PATH_PARAMETER].string_param = path
    found = read(made.SerializeToString(), runtime)
    assert found is not None
    return found


def sent(body: Mapping[str, Any], **where: Any) -> dict[str, Any]:
    """Return the body that the server gets."""
    found: dict[str, Any] = json.loads(request(body, **where).document("served"))
    return found


def test_the_server_gets_all_that_was_sent_under_its_own_name_of_the_model() -> None:
    """But what is for the router; a stream for its usage, too."""
    body = {"messages": [{"role": "tool", "content": None}], "seed": 2**60, "x": [1e-7, None]}

    assert sent({"model": "m", "accuracy_floor": 1, **body}) == {"model": "served", **body}
    counted = {"include_usage": True, "continuous_usage_stats": True}
    assert (
        sent({"stream": True, "stream_options": {"a": 1}})["stream_options"] == {"a": 1} | counted
    )
    assert "stream_options" not in sent({"stream": True}, path="/v1/responses")
    assert "stream_options" not in sent({"stream": True}, path="/v1/embeddings")


@pytest.mark.parametrize(
    ("path", "given", "expected"),
    [
        ("/v1/chat/completions", {}, {"max_tokens": 9}),
        ("/v1/chat/completions", {"max_completion_tokens": 3}, {"max_completion_tokens": 3}),
        ("/v1/completions", {"max_tokens": None}, {"max_tokens": 9}),
        ("/v1/responses", {}, {"max_output_tokens": 9}),
        ("/v1/embeddings", {}, {}),
    ],
)
def test_a_limit_is_set_where_the_operator_gave_one_and_the_client_did_not(
    path: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    limited = RUNTIME.model_copy(update={"max_tokens": 9})

    assert sent(given, path=path, runtime=limited) == {"model": "served"} | expected
    assert sent(given, path=path) == {"model": "served"} | given, "none: the server's default"


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/../x", "", "/sleep"])
def test_only_paths_that_answer_requests_reach_the_server(path: str) -> None:
    with pytest.raises(InvalidArgument, match="must be one of"):
        request({}, path=path)


# ---- streams -----------------------------------------------------------------------------------


def chunks(options: Mapping[str, Any], style: str) -> Iterator[bytes]:
    """Yield the events that a server sends under stream options, as vLLM or OpenAI does."""
    wants = options.get("include_usage")
    always = options.get("continuous_usage_stats") and style != "openai"
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm"},
        {"content": 'say "usage": {} \\"usage\\": {"a": 1}'},
        {"tool_calls": [CALL]},
        {"content": " é\u2028"},
        {},
    ]
    for made, delta in enumerate(deltas):
        last = made == len(deltas) - 1
        chunk: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "choices": []}
        reason = "stop" if last else None
        chunk["choices"] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        if wants and always:
            chunk["usage"] = usage(made)
        elif wants and style == "openai":
            chunk["usage"] = None
        if style == "vllm" and last and not wants:
            chunk["system_fingerprint"] = "vllm-0.32"
        yield b"data: %b\n\n" % dumps(chunk, style)
    if wants:
        chunk = {"id": "c", "choices": [], "usage": usage(5)}
        if style == "vllm":
            chunk["system_fingerprint"] = "vllm-0.32"
        yield b"data: %b\n\n" % dumps(chunk, style)
    yield b"data: [DONE]\n\n"


def usage(made: int) -> dict[str, Any]:
    details = {"cached_tokens": 2, "audio_tokens": None}
    total = {"prompt_tokens": 7, "total_tokens": 7 + made, "completion_tokens": made}
    return total | {"prompt_tokens_details": details}


def dumps(chunk: Mapping[str, Any], style: str) -> bytes:
    """Write JSON as servers do: pydantic's, nlohmann's, Python's default."""
    if style == "vllm":
        return json.dumps(chunk, separators=(",", ":"), ensure_ascii=False).encode()
    if style == "llama.cpp":
        return json.dumps(chunk, separators=(",", ":"), sort_keys=True).encode()
    return json.dumps(chunk).encode()


def ran(coroutine: Coroutine[Any, Any, R]) -> R:
    """Return what a coroutine returns that never waits."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    result: R = ended.value.value
    return result


async def passed(wanted: ApiRequest, stream: bytes) -> tuple[bytes, Progress]:
    """Return what passes of a stream that comes line by line."""

    async def lines() -> AsyncIterator[bytes]:
        for line in stream.splitlines(keepends=True):
            yield line

    answers = ServerAnswers("s")
    progress = Progress(answers, "s", 7)
    passage = Passage(wanted, progress)
    pieces = [passage.take(event) async for event in answers.events(lines())]
    assert passage.complete
    return b"".join((*pieces, passage.rest())), progress


OPTIONS: list[dict[str, Any] | None] = [
    None,
    {},
    {"include_usage": False},
    {"include_usage": True},
    {"include_usage": True, "continuous_usage_stats": True},
]


@pytest.mark.parametrize(
    ("options", "style"), [*product(OPTIONS, ["vllm", "llama.cpp", "openai", "default"])]
)
def test_a_stream_is_what_the_client_would_have_been_sent_by_the_server(
    options: dict[str, Any] | None, style: str
) -> None:
    """Byte for byte: usage that only the worker wants is taken out, and counted."""
    wanted = request({"stream": True} | ({} if options is None else {"stream_options": options}))
    options_sent = json.loads(wanted.document("m"))["stream_options"]
    found, progress = ran(passed(wanted, b"".join(chunks(options_sent, style))))

    assert found == b"".join(chunks(options or {}, style))
    step = progress.step(b"")
    assert (progress.reason, step.input_tokens, step.output_tokens) == ("stop", 7, 5)
    assert (step.computed_tokens, progress.counted) == (5, True)


@pytest.mark.parametrize("options", OPTIONS[2:])
def test_usage_that_stands_beside_the_last_choice_alone_reaches_who_wants_it(
    options: dict[str, Any],
) -> None:
    """Some servers send no chunk of its own for it."""
    last = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
    stream = b"data: %b\n\n%b" % (dumps(last | {"usage": usage(1)}, "vllm"), DONE)
    wanted = request({"stream": True, "stream_options": options})
    found, progress = ran(passed(wanted, stream))

    without = b"data: %b\n\n%b" % (dumps(last, "vllm"), DONE)
    assert found == (stream if options["include_usage"] else without)
    assert progress.counted


def test_comments_and_names_of_events_stay_and_what_follows_the_end_is_not_read() -> None:
    stream = (
        b": ping\n\nevent: response.output_text.delta\r\n"
        b'data: {"type": "response.output_text.delta", "delta": "a"}\r\n\r\n'
        b'data: {"type": "response.completed", "response": {"status": "completed",'
        b' "usage": {"input_tokens": 3, "output_tokens": 2,'
        b' "input_tokens_details": {"cached_tokens": 1}}}}\n\ndata: [DONE]\n\n'
    )
    found, progress = ran(
        passed(request({"stream": True}, path="/v1/responses"), stream + b"data: {\n\n")
    )
    step = progress.step(b"")

    assert found == stream
    assert (progress.reason, step.input_tokens, step.output_tokens) == ("stop", 3, 2)


def test_nothing_leaves_before_the_first_token_and_the_end_waits_for_the_receipt() -> None:
    """Until then another server may answer; the usage and what follows go with the last part."""
    passage = Passage(request({"stream": True}), Progress(ServerAnswers("s"), "s", 7))
    stream = b"".join(chunks({"include_usage": True, "continuous_usage_stats": True}, "vllm"))

    async def leaving() -> list[bytes]:
        async def lines() -> AsyncIterator[bytes]:
            for line in stream.splitlines(keepends=True):
                yield line

        return [passage.take(event) async for event in ServerAnswers("s").events(lines())]

    first, second, *middle, reason, _, done = ran(leaving())
    assert first == b""
    assert b'"role"' in second
    assert b"Hm" in second
    assert all(middle)
    assert (reason, done) == (b"", b"")
    assert passage.rest().endswith(b"data: [DONE]\n\n")


@examples(0.5)
@given(
    st.dictionaries(
        st.text(max_size=5), st.none() | st.integers() | st.text() | st.lists(st.text(), max_size=2)
    ),
    st.none() | st.dictionaries(st.text(max_size=3), st.integers() | st.text(), max_size=3),
)
def test_an_event_without_its_usage_says_all_else(chunk: dict[str, Any], usage: Any) -> None:
    """Whatever the rest is, and wherever usage stands."""
    chunk.pop("usage", None)
    for whole in ({"usage": usage, **chunk}, {**chunk, "usage": usage}):
        raw = b"data: %b\n\n" % json.dumps(whole).encode()
        found = without_usage(raw, whole)
        assert json.loads(found.removeprefix(b"data: ")) == chunk


# ---- llama.cpp ---------------------------------------------------------------------------------


def test_llama_cpp_refuses_what_it_would_pass_over_and_takes_what_changes_nothing() -> None:
    def refused(path: str = "/v1/chat/completions", **body: Any) -> str:
        with pytest.raises(ServiceError) as caught:
            llama_members.check(body, path)
        return str(caught.value.field)

    neutral = {"n": 2, "tools": [], "repetition_penalty": 1.0, "top_logprobs": 0, "user": "me"}
    neutral |= {"metadata": {}, "store": True, "service_tier": "flex", "min_tokens": 0}
    llama_members.check(neutral | {"guided_json": None, "echo": False}, "/v1/chat/completions")
    assert refused(repetition_penalty=1.1) == "repetition_penalty"
    assert refused(guided_json={}) == "guided_json"
    assert refused(min_tokens=False) == "min_tokens", "false is no number"
    assert refused("/v1/completions", echo=True) == "echo"
    assert refused("/v1/responses", previous_response_id="a") == "previous_response_id"
    llama_members.check({"guided_json": {}}, "/tokenize")


def test_llama_cpp_gets_a_chosen_tool_alone_and_no_tools_where_its_template_has_no_place() -> None:
    """It takes a choice that is an object for "auto", and passes over tools without a place."""
    tools = [{"type": "function", "function": {"name": name}} for name in "ab"]
    chosen = {"type": "function", "function": {"name": "b"}}
    found = llama_members.with_chosen_tool({"tools": tools, "tool_choice": chosen})
    assert found == {"tools": tools[1:], "tool_choice": "required"}
    of_responses = {"tools": [{"name": "a"}], "tool_choice": {"type": "function", "name": "a"}}
    assert llama_members.with_chosen_tool(of_responses)["tool_choice"] == "required"
    for wrong in ({**chosen, "function": {"name": "c"}}, {"type": "allowed_tools"}):
        with pytest.raises(InvalidArgument, match="tool_choice"):
            llama_members.with_chosen_tool({"tools": tools, "tool_choice": wrong})

    chat = "/v1/chat/completions"
    with pytest.raises(InvalidArgument, match=r"tools: .* runtime\.chat_template"):
        llama_members.check({"tools": tools}, chat, ("tools",))
    llama_members.check({"tools": tools, "tool_choice": "none"}, chat, ("tools",))
    llama_members.check({"tools": tools}, chat, ("reasoning_effort",))

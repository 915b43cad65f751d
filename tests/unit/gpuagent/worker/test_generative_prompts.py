"""Parameters of a request for text: those that are read, and those that are refused."""

from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import grpc_service_pb2 as pb
from services.gpuagent.worker.generative import prompts
from services.kit.config import GenerativeRuntime
from services.kit.errors import InvalidArgument, ServiceError

HOW: Final = (GenerativeRuntime(kind="generative", context_tokens=128, max_tokens=32), 128)
RAW = "raw_input_contents[0]"


def request(text: bytes, *, name: str = "text_input", **parameters: Any) -> bytes:
    message = pb.ModelInferRequest(model_name="chat", id="q")
    message.inputs.add(name=name, datatype="BYTES", shape=[1])
    message.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    kinds = {str: "string_param", bool: "bool_param", int: "int64_param", float: "double_param"}
    for key, value in parameters.items():
        setattr(message.parameters[key], kinds[type(value)], value)
    return message.SerializeToString()


def test_every_parameter_is_read() -> None:
    parameters: dict[str, Any] = {
        "max_tokens": 5,
        "temperature": 0,
        "top_p": 0.5,
        "seed": 7,
        "stop": "\n",
    }
    prompt = prompts.read(request(b"Hi", **parameters), *HOW)

    assert (prompt.text, prompt.id, prompt.max_tokens, prompt.temperature) == ("Hi", "q", 5, 0.0)
    assert (prompt.top_p, prompt.seed, prompt.stop) == (0.5, 7, ("\n",))


def test_a_conversation_is_read_and_its_size_counts() -> None:
    """The prompt is its last message; without a template there is no conversation."""
    before = '[{"role": "system", "content": "Be brief."}]'
    prompt = prompts.read(request(b"Hi", chat=True, messages=before), *HOW)
    long = '[{"role": "user", "content": "%s"}]' % ("x" * 128 * prompts.MOST_BYTES_PER_TOKEN)

    assert prompt.chat
    assert prompt.history == ({"role": "system", "content": "Be brief."},)
    with pytest.raises(InvalidArgument, match="the prompt has 8194 bytes"):
        prompts.read(request(b"Hi", chat=True, messages=long), *HOW)
    with pytest.raises(InvalidArgument, match="left out where `chat` is false"):
        prompts.read(request(b"Hi", chat=False, messages=before), *HOW)


def test_several_words_end_a_text() -> None:
    prompt = prompts.read(request(b"Hi", stop="a", stop_sequences='["b", "c"]'), *HOW)

    assert prompt.stop == ("a", "b", "c")


def test_a_parameter_left_out_is_the_deployments_or_the_engines() -> None:
    prompt = prompts.read(request("Grüße".encode(), name="prompt", priority=1), *HOW)

    assert (prompt.text, prompt.max_tokens) == ("Grüße", 32)
    assert (prompt.temperature, prompt.top_p, prompt.seed, prompt.stop) == (None, None, None, ())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 129),
        ("max_tokens", 1.5),
        ("max_tokens", "8"),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("seed", -1),
        ("seed", 2**32 - 1),
        ("stop", ""),
        ("stop", "x" * 257),
        ("stop", 3),
        ("stop_sequences", "a"),
        ("stop_sequences", '["a", 1]'),
        ("stop_sequences", '["a", "b", "c", "d", "e"]'),
        ("chat", 1),
        ("messages", "{}"),
        ("messages", '[{"role": "tool", "content": ""}]'),
        ("messages", '[{"role": "user", "content": 1}]'),
        ("messages", '[{"role": "user", "content": "", "name": ""}]'),
        ("messages", "[" * 100_000),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"parameters\.{name} must be") as refused:
        prompts.read(request(b"Hi", **{name: value}), *HOW)

    assert refused.value.field == f"parameters.{name}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "the prompt is empty"),
        (b"\xff\xfe\x00", "BYTES must be UTF-8"),
        (b"\xed\xa0\x80", "BYTES must be UTF-8"),  # half of a surrogate pair
        (b"x" * 2**20, "can fit the context of 128 tokens"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_refused_before_it_costs_anything(
    text: bytes, words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words) as refused:
        prompts.read(request(text), *HOW)

    assert refused.value.field == RAW


def test_the_error_about_another_tensor_names_the_declared_one() -> None:
    with pytest.raises(InvalidArgument, match="the model has text_input"):
        prompts.read(request(b"Hi", name="question"), *HOW)


@given(st.binary(max_size=300))
def test_whatever_comes_is_a_prompt_or_a_clear_error(data: bytes) -> None:
    """No bytes, as a message or as a prompt, raise anything but the service's own errors."""
    for message in (data, request(data)):
        with suppress(ServiceError):
            assert prompts.read(message, *HOW).text


@given(st.text())
def test_text_comes_back_as_it_was_said(text: str) -> None:
    answer = pb.ModelInferResponse.FromString(
        prompts.read(request(b"Hi"), *HOW).answer(text.encode(), finish_reason="stop")
    )

    assert answer.raw_output_contents[0][4:].decode() == text
    assert [tensor.name for tensor in answer.outputs] == ["text_output"]
    assert answer.parameters["finish_reason"].string_param == "stop"
    assert (answer.model_name, answer.id) == ("chat", "q")

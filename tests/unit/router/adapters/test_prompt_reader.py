"""Finding the prompt in a request, whatever the request is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import grpc_service_pb2 as pb
from services.router.adapters.predictor_client import limit_of, prompt_of, was_truncated
from services.router.core.wire import read_head

Tensor = pb.ModelInferRequest.InferInputTensor


def tensor(name: str = "text_input", datatype: str = "BYTES", *contents: bytes) -> Tensor:
    given = pb.InferTensorContents(bytes_contents=contents) if contents else None
    return Tensor(name=name, datatype=datatype, shape=[1], contents=given)


def found(tensors: list[Tensor], *raw: bytes) -> bytes | None:
    request = pb.ModelInferRequest(model_name="m", inputs=tensors, raw_input_contents=raw)
    return prompt_of(request.SerializeToString())


def sized(text: bytes) -> bytes:
    return len(text).to_bytes(4, "little") + text


@given(st.binary(max_size=200), st.sampled_from(["text_input", "prompt"]))
def test_a_prompt_is_found_raw_or_not_and_behind_other_tensors(text: bytes, name: str) -> None:
    assert found([tensor(name)], sized(text)) == text
    assert found([tensor(name, "BYTES", text)]) == text
    assert found([tensor("stream", "BOOL"), tensor(name)], b"\1", sized(text)) == text


@pytest.mark.parametrize(
    ("tensors", "raw"),
    [
        pytest.param([], [], id="no tensor"),
        pytest.param([tensor("image")], [sized(b"x")], id="another name"),
        pytest.param([tensor("prompt", "FP32")], [sized(b"x")], id="another type"),
        pytest.param([tensor()], [], id="nothing in it"),
        pytest.param([tensor()], [b""], id="no element"),
        pytest.param([tensor()], [b"\5\0\0\0abcd"], id="cut off"),
        pytest.param([tensor()], [b"\xff\xff\xff\xffabcd"], id="a huge size"),
    ],
)
def test_where_there_is_none_none_is_found(tensors: list[Tensor], raw: list[bytes]) -> None:
    assert found(tensors, *raw) is None


@given(st.binary(max_size=200))
def test_any_bytes_have_a_prompt_or_none(body: bytes) -> None:
    prompt = prompt_of(body)
    assert prompt is None or isinstance(prompt, bytes)
    assert was_truncated(body) in {True, False}


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        (None, 0),
        (pb.InferParameter(int64_param=60), 60),
        (pb.InferParameter(uint64_param=60), 60),
        (pb.InferParameter(int64_param=-1), 0),
        (pb.InferParameter(uint64_param=2**63), 0),
        (pb.InferParameter(string_param="60"), 0),
    ],
)
def test_the_limit_is_read_and_an_invalid_one_is_none(
    parameter: pb.InferParameter | None, expected: int
) -> None:
    given = {} if parameter is None else {"max_tokens": parameter}
    request = pb.ModelInferRequest(inputs=[tensor("prompt", "BYTES", b"x")], parameters=given)
    assert limit_of(read_head(request.SerializeToString()).max_tokens) == expected


@pytest.mark.parametrize(("reason", "cut"), [("length", True), ("stop", False), ("", False)])
def test_an_answer_that_ended_by_its_limit_is_truncated(reason: str, cut: bool) -> None:
    given = {"finish_reason": pb.InferParameter(string_param=reason)} if reason else {}
    response = pb.ModelInferResponse(parameters=given).SerializeToString()
    assert was_truncated(response) == cut

"""The partial reader agrees with protobuf's own parser; what is appended parses as protobuf."""

from __future__ import annotations

import contextlib

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference import grpc_service_pb2 as pb
from services.kit.errors import InvalidArgument
from services.router.wire import double_parameter, read_head, string_parameter

text = st.text(max_size=12)
names = st.one_of(st.just("timeout"), st.just("priority"), text)

parameters = st.one_of(
    st.builds(lambda value: pb.InferParameter(int64_param=value), st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda value: pb.InferParameter(uint64_param=value), st.integers(0, 2**64 - 1)),
    st.builds(lambda value: pb.InferParameter(bool_param=value), st.booleans()),
    st.builds(lambda value: pb.InferParameter(string_param=value), text),
    st.builds(lambda value: pb.InferParameter(double_param=value), st.floats(allow_nan=False)),
)

requests = st.builds(
    pb.ModelInferRequest,
    model_name=text,
    model_version=text,
    id=text,
    parameters=st.dictionaries(names, parameters, max_size=3),
    raw_input_contents=st.lists(st.binary(max_size=300), max_size=3),
)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def tag(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


numbers = st.one_of(st.integers(1, 8), st.integers(9, 2**29 - 1))
scalars = st.one_of(
    st.builds(lambda n, v: tag(n, 0) + varint(v), numbers, st.integers(0, 2**64 - 1)),
    st.builds(lambda n, v: tag(n, 1) + v, numbers, st.binary(min_size=8, max_size=8)),
    st.builds(lambda n, v: tag(n, 5) + v, numbers, st.binary(min_size=4, max_size=4)),
    st.builds(
        lambda n, v: tag(n, 2) + varint(len(v)) + v,
        st.one_of(st.integers(1, 3), numbers),
        st.one_of(text.map(str.encode), st.binary(max_size=20)),
    ),
)
fields = st.recursive(
    scalars,
    lambda inner: st.builds(
        lambda n, body: tag(n, 3) + b"".join(body) + tag(n, 4),
        numbers,
        st.lists(inner, max_size=3),
    ),
    max_leaves=4,
)


def timeout_s(request: pb.ModelInferRequest) -> float | None:
    """What the `timeout` parameter says, read from the parsed message."""
    parameter = request.parameters.get("timeout")
    if parameter is None:
        return None
    value = {
        "int64_param": parameter.int64_param,
        "uint64_param": parameter.uint64_param,
    }.get(parameter.WhichOneof("parameter_choice") or "", 0)
    return value / 1e6 if value > 0 else None


def agree(data: bytes) -> None:
    """Assert that the reader and protobuf read the same, wherever protobuf accepts."""
    try:
        parsed = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        return
    head = read_head(data)
    assert (head.model_name, head.model_version, head.id) == (
        parsed.model_name,
        parsed.model_version,
        parsed.id,
    )
    assert head.timeout_s == timeout_s(parsed)


@given(requests)
def test_reader_agrees_with_protobuf_on_every_message(request_: pb.ModelInferRequest) -> None:
    agree(request_.SerializeToString())


@given(st.lists(st.one_of(requests.map(pb.ModelInferRequest.SerializeToString), fields)))
def test_reader_agrees_when_fields_repeat_and_unknown_ones_come(parts: list[bytes]) -> None:
    """Concatenated messages: the last scalar wins, maps merge, unknown fields and groups pass."""
    agree(b"".join(parts))


@settings(max_examples=300)
@given(st.binary(max_size=60))
@example(b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
@example(b"\xff" * 11)
@example(b"\x0b\x0c")
@example(b"\x0c")
def test_arbitrary_bytes_are_read_as_protobuf_reads_them_or_refused(data: bytes) -> None:
    """Nothing but InvalidArgument is ever raised, and only where protobuf refuses too."""
    try:
        read_head(data)
    except InvalidArgument:
        with pytest.raises(DecodeError):
            pb.ModelInferRequest.FromString(data)
    agree(data)


@given(requests, st.integers(0, 400))
def test_a_truncated_request_is_refused_or_ends_at_a_field(
    request_: pb.ModelInferRequest, cut: int
) -> None:
    """What is left where protobuf accepts it reads the same; the rest is InvalidArgument."""
    data = request_.SerializeToString()[:cut]
    with contextlib.suppress(InvalidArgument):
        read_head(data)
    agree(data)


def test_a_request_of_too_many_fields_is_refused_instead_of_holding_the_loop() -> None:
    with pytest.raises(InvalidArgument):
        read_head(b"\x70\x01" * 100_000)


def test_groups_nested_without_end_are_refused() -> None:
    with pytest.raises(InvalidArgument):
        read_head(b"\x7b" * 101 + b"\x7c" * 101)


responses = st.builds(
    pb.ModelInferResponse,
    model_name=text,
    id=text,
    parameters=st.dictionaries(names, parameters, max_size=3),
    raw_output_contents=st.lists(st.binary(max_size=300), max_size=3),
)


@given(responses, st.text(max_size=200), st.text(max_size=200), st.floats(allow_nan=False))
def test_appended_parameters_parse_to_the_same_message_plus_them(
    response: pb.ModelInferResponse, key: str, word: str, number: float
) -> None:
    data = response.SerializeToString()
    extended = data + string_parameter("model_variant", word) + double_parameter(key, number)

    parsed = pb.ModelInferResponse.FromString(extended)

    response.parameters["model_variant"].string_param = word
    response.parameters[key].double_param = number
    assert parsed == response

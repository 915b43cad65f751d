"""The partial reader agrees with protobuf's own parser; what is appended parses as protobuf."""

import contextlib
import json
import math

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from hypothesis import example, given
from hypothesis import strategies as st

from inference import grpc_service_pb2 as pb
from services.kit.errors import InvalidArgument
from services.router.core.wire import (
    Head,
    bool_parameter,
    double_parameter,
    enclosed,
    integer_parameter,
    prompt_of,
    read_head,
    string_parameter,
)
from tests.support.examples import examples

text = st.text(max_size=12)
names = st.one_of(st.sampled_from(["timeout", "priority", "max_tokens"]), text)

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


def outline() -> type[Message]:
    """A message that has the top level of a ModelInferRequest and takes its insides as bytes."""
    field = descriptor_pb2.FieldDescriptorProto
    message = descriptor_pb2.DescriptorProto(name="Outline")
    for number, name in enumerate(("model_name", "model_version", "id"), 1):
        message.field.add(name=name, number=number, type=field.TYPE_STRING, label=1)
    file = descriptor_pb2.FileDescriptorProto(
        name="outline.proto", package="test.wire", syntax="proto3", message_type=[message]
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.wire.Outline"))


Outline = outline()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid message after accidents: bytes changed, cut out, doubled, or put in between."""
    data = bytearray(draw(requests).SerializeToString())
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, len(data)))
        last = draw(st.integers(first, min(first + 20, len(data))))
        accident = draw(st.sampled_from(("change", "cut", "double", "insert")))
        if accident == "cut":
            del data[first:last]
        elif accident == "double":
            data[first:first] = data[first:last]
        elif accident == "insert":
            data[first:first] = draw(st.one_of(st.binary(max_size=12), fields))
        elif first < len(data):
            data[first] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


def integer(request: pb.ModelInferRequest, key: str) -> int:
    """An integer parameter of the parsed message; 0 where there is none."""
    parameter = request.parameters.get(key)
    if parameter is None:
        return 0
    return {
        "int64_param": parameter.int64_param,
        "uint64_param": parameter.uint64_param,
    }.get(parameter.WhichOneof("parameter_choice") or "", 0)


def whole(request: pb.ModelInferRequest, key: str) -> bool:
    """True where a parameter is an integer >= 0, without a value, or not there."""
    parameter = request.parameters.get(key)
    choice = parameter.WhichOneof("parameter_choice") if parameter else None
    return choice in (None, "int64_param", "uint64_param") and integer(request, key) >= 0


def agree(data: bytes) -> None:
    """Assert that the reader and protobuf read the same, wherever protobuf accepts."""
    try:
        parsed = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        return
    if not all(whole(parsed, key) for key in ("timeout", "priority")):
        with pytest.raises(InvalidArgument, match="must be an integer"):
            read_head(data)
        return
    head = read_head(data)
    assert (head.model_name, head.model_version, head.id) == (
        parsed.model_name,
        parsed.model_version,
        parsed.id,
    )
    timeout_us = integer(parsed, "timeout")
    assert head.timeout_s == (timeout_us / 1e6 if timeout_us > 0 else None)
    assert head.priority == integer(parsed, "priority")
    assert head.max_tokens == max(integer(parsed, "max_tokens"), 0)


@given(requests)
def test_reader_agrees_with_protobuf_on_every_message(request_: pb.ModelInferRequest) -> None:
    """Every message that a client's library writes is read as protobuf reads it."""
    agree(request_.SerializeToString())


@examples(0.25)
@given(st.lists(st.one_of(requests.map(pb.ModelInferRequest.SerializeToString), fields)))
def test_reader_agrees_when_fields_repeat_and_unknown_ones_come(parts: list[bytes]) -> None:
    """Concatenated messages: the last scalar wins, maps merge, unknown fields and groups pass."""
    agree(b"".join(parts))


@examples(2)
@given(st.binary(max_size=60))
@example(b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
@example(b"\xff" * 11)
@example(b"\x0b\x0c")
@example(b"\x0c")
def test_arbitrary_bytes_are_read_as_protobuf_reads_them_or_refused(data: bytes) -> None:
    """Nothing but InvalidArgument is ever raised, and only where protobuf refuses too."""
    try:
        read_head(data)
    except InvalidArgument as error:
        if error.field:  # it is a message, with a value that is refused
            return
        with pytest.raises(DecodeError):
            pb.ModelInferRequest.FromString(data)
    agree(data)


@examples(1)
@given(damaged())
def test_a_damaged_request_is_routed_as_protobuf_reads_its_top_level_or_refused(
    data: bytes,
) -> None:
    """Nothing is forwarded whose model name, version or id a full parse would read differently.

    Where the reader accepts, protobuf accepts all but, perhaps, the insides of tensors and of
    parameters, which the worker checks.
    """
    agree(data)
    try:
        head = read_head(data)
    except InvalidArgument as error:
        if error.field:  # it is a message, with a value that is refused
            return
        with pytest.raises(DecodeError):
            pb.ModelInferRequest.FromString(data)
        return
    parsed = Outline.FromString(data)
    for name in ("model_name", "model_version", "id"):
        assert getattr(head, name) == getattr(parsed, name)


@examples(0.4)
@given(requests, st.integers(0, 400))
def test_a_truncated_request_is_refused_or_ends_at_a_field(
    request_: pb.ModelInferRequest, cut: int
) -> None:
    """A rest that protobuf accepts reads the same; any other is InvalidArgument."""
    data = request_.SerializeToString()[:cut]
    with contextlib.suppress(InvalidArgument):
        read_head(data)
    agree(data)


def test_a_request_of_too_many_fields_is_refused_instead_of_holding_the_loop() -> None:
    """A hundred thousand fields of two bytes each are refused."""
    with pytest.raises(InvalidArgument):
        read_head(b"\x70\x01" * 100_000)


@pytest.mark.parametrize(
    ("parameter", "priority"),
    [
        (pb.InferParameter(uint64_param=2**64 - 1), 2**64 - 1),
        (pb.InferParameter(int64_param=7), 7),
        (pb.InferParameter(), 0),
    ],
    ids=["unsigned", "signed", "none"],
)
def test_priority_is_taken_from_either_integer(parameter: pb.InferParameter, priority: int) -> None:
    """Triton's client sends it unsigned, its documentation says signed; none is the default."""
    request = pb.ModelInferRequest(model_name="m", parameters={"priority": parameter})

    assert read_head(request.SerializeToString()).priority == priority


@pytest.mark.parametrize(
    ("parameter", "floor"),
    [
        (pb.InferParameter(double_param=0.76), 0.76),
        (pb.InferParameter(int64_param=76), 76.0),
        (pb.InferParameter(uint64_param=76), 76.0),
    ],
    ids=["double", "signed", "unsigned"],
)
def test_an_accuracy_floor_is_any_kind_of_number(
    parameter: pb.InferParameter, floor: float
) -> None:
    """Clients send whole numbers as integers."""
    request = pb.ModelInferRequest(model_name="m", parameters={"accuracy_floor": parameter})

    assert read_head(request.SerializeToString()).accuracy_floor == floor


@pytest.mark.parametrize(
    "parameter",
    [
        pb.InferParameter(double_param=-0.1),
        pb.InferParameter(double_param=math.inf),
        pb.InferParameter(double_param=math.nan),
        pb.InferParameter(int64_param=-1),
        pb.InferParameter(string_param="0.9"),
        pb.InferParameter(bool_param=True),
    ],
    ids=["negative", "infinite", "nan", "signed", "text", "bool"],
)
def test_an_accuracy_floor_that_is_no_number_of_at_least_0_is_refused(
    parameter: pb.InferParameter,
) -> None:
    """A floor is a promise to the caller: one that was misread would be broken without a word."""
    request = pb.ModelInferRequest(model_name="m", parameters={"accuracy_floor": parameter})

    with pytest.raises(InvalidArgument, match="accuracy_floor must be a number of at least 0"):
        read_head(request.SerializeToString())


def test_an_entry_that_comes_again_replaces_the_first() -> None:
    """Protobuf's maps do so, whatever type the second has."""
    first = pb.ModelInferRequest(parameters={"timeout": pb.InferParameter(int64_param=5_000_000)})
    again = pb.ModelInferRequest(parameters={"timeout": pb.InferParameter(string_param="soon")})

    assert read_head(first.SerializeToString()).timeout_s == 5.0
    with pytest.raises(InvalidArgument, match=r"parameters\.timeout: must be an integer"):
        read_head(first.SerializeToString() + again.SerializeToString())


@pytest.mark.parametrize(
    ("remaining_s", "timeout_s", "limit_s"),
    [(None, None, 30.0), (None, 40.0, 40.0), (2.0, None, 2.0), (2.0, 3.0, 2.0), (3.0, 2.0, 2.0)],
)
def test_a_request_is_wanted_until_the_first_of_its_limits(
    remaining_s: float | None, timeout_s: float | None, limit_s: float
) -> None:
    """The caller's deadline and the parameter bound it; the default holds without both."""
    assert Head("m", timeout_s=timeout_s).limit_s(remaining_s, 30.0) == limit_s


def test_groups_nested_without_end_are_refused() -> None:
    """A hundred and one levels are one more than protobuf's own parsers take."""
    with pytest.raises(InvalidArgument):
        read_head(b"\x7b" * 101 + b"\x7c" * 101)


responses = st.builds(
    pb.ModelInferResponse,
    model_name=text,
    id=text,
    parameters=st.dictionaries(names, parameters, max_size=3),
    raw_output_contents=st.lists(st.binary(max_size=300), max_size=3),
)


@examples(0.4)
@given(
    responses,
    st.lists(st.text(max_size=200), min_size=4, max_size=4, unique=True),
    st.text(max_size=200),
    st.tuples(st.floats(allow_nan=False), st.integers(0, 2**63 - 1), st.booleans()),
)
def test_appended_parameters_parse_to_the_same_message_plus_them(
    response: pb.ModelInferResponse, keys: list[str], word: str, more: tuple[float, int, bool]
) -> None:
    """Each kind of parameter is added, or replaces the one of its key; nothing else changes."""
    number, count, flag = more
    extended = response.SerializeToString() + b"".join(
        (
            string_parameter(keys[0], word),
            double_parameter(keys[1], number),
            integer_parameter(keys[2], count),
            bool_parameter(keys[3], value=flag),
        )
    )

    parsed = pb.ModelInferResponse.FromString(extended)

    response.parameters[keys[0]].string_param = word
    response.parameters[keys[1]].double_param = number
    response.parameters[keys[2]].int64_param = count
    response.parameters[keys[3]].bool_param = flag
    assert parsed == response


@given(responses)
def test_an_enclosed_message_is_a_field_of_another(response: pb.ModelInferResponse) -> None:
    """The pieces are joined, of whatever length."""
    data = response.SerializeToString()
    written = enclosed(2, data[:3], data[3:], string_parameter("k", "v"))

    response.parameters["k"].string_param = "v"
    assert pb.ModelStreamInferResponse.FromString(written).infer_response == response


@given(st.lists(text, max_size=3), text, st.booleans())
def test_a_prompt_is_what_was_said_before_and_the_text_however_it_is_sent(
    before: list[str], prompt: str, raw: bool
) -> None:
    """Earlier messages come first, then the text, from either place of a tensor's contents."""
    request = pb.ModelInferRequest(model_name="m")
    said = json.dumps([{"role": "user", "content": each} for each in before])
    request.parameters["messages"].string_param = said
    element = prompt.encode()
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    if raw:
        request.raw_input_contents.append(len(element).to_bytes(4, "little") + element)
    else:
        tensor.contents.bytes_contents.append(element)

    assert prompt_of(request.SerializeToString(), 10**6) == "".join([*before, prompt]).encode()


@given(st.binary(max_size=200))
def test_bytes_other_than_a_request_have_a_prompt_of_some_bytes_and_raise_nothing(
    data: bytes,
) -> None:
    """A prompt is for comparing only, so that no bytes are an error."""
    assert len(prompt_of(data, 10**6)) <= len(data)


@pytest.mark.parametrize("said", ["{", "[1]", "null", '[{"content": 5}]', "[" * 100_000])
def test_messages_that_are_none_are_no_part_of_a_prompt(said: str) -> None:
    """JSON other than a list of messages with text is left to the worker to refuse."""
    request = pb.ModelInferRequest(model_name="m")
    request.parameters["messages"].string_param = said

    assert prompt_of(request.SerializeToString(), 10**6) == b""


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.integers(0, 60), st.booleans())
def test_of_a_prompt_no_more_is_read_than_counts(
    elements: list[bytes], limit_bytes: int, raw: bool
) -> None:
    """Of each input only the first element: a tensor may have millions, and gigabytes."""
    request = pb.ModelInferRequest(model_name="m")
    for each in elements:
        tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[2])
        if raw:
            request.raw_input_contents.append((len(each).to_bytes(4, "little") + each) * 2)
        else:
            tensor.contents.bytes_contents.extend([each, b"not read"])

    found = prompt_of(request.SerializeToString(), limit_bytes)

    assert found == b"".join(elements)[:limit_bytes]


def test_messages_longer_than_what_counts_are_not_parsed() -> None:
    """An entry of as many bytes as count is read, one of a byte more is not."""
    request = pb.ModelInferRequest(model_name="m")
    request.parameters["messages"].string_param = json.dumps([{"content": "x" * 60}])
    name = pb.ModelInferRequest(model_name="m")
    size_bytes = len(request.SerializeToString()) - len(name.SerializeToString()) - 2

    assert prompt_of(request.SerializeToString(), size_bytes) == b"x" * 60
    assert prompt_of(request.SerializeToString(), size_bytes - 1) == b""


def test_other_parameters_are_no_part_of_a_prompt() -> None:
    """Only `messages` is, wherever its name occurs in other entries."""
    request = pb.ModelInferRequest(model_name="m")
    request.parameters["messages_of"].string_param = json.dumps([{"content": "x"}])
    request.parameters["messages"].string_param = json.dumps([{"content": "y"}])

    assert prompt_of(request.SerializeToString(), 1000) == b"y"

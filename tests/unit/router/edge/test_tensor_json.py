"""Tensors of the Open Inference Protocol in JSON and in binary."""

import json
import math
import re
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import grpc_service_pb2 as pb
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.json_bounds import MAX_JSON_BYTES
from services.router.edge import tensor_json
from services.router.edge.documents import parsed_object

NUMBERS = {"INT8": "i1", "UINT16": "<u2", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4"}


def body(*inputs: dict[str, Any], **rest: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **rest}).encode()


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]} | changes


def converted(data: bytes, json_bytes: int | None = None) -> pb.ModelInferRequest:
    """The message that a request over HTTP becomes."""
    request, after = tensor_json.read(data, json_bytes)
    return pb.ModelInferRequest.FromString(tensor_json.message(request, "digits", "1", after))


@given(st.sampled_from(sorted(NUMBERS)), st.lists(st.integers(0, 100), min_size=1, max_size=12))
def test_numbers_become_the_bytes_that_numpy_writes(datatype: str, values: list[int]) -> None:
    made = converted(
        body(tensor(shape=[len(values), 1], datatype=datatype, data=[[v] for v in values]))
    )

    assert made.raw_input_contents[0] == np.array(values, NUMBERS[datatype]).tobytes()


def test_texts_and_truth_values_become_raw_contents() -> None:
    made = converted(
        body(
            tensor(name="s", shape=[2], datatype="BYTES", data=["é", ""]),
            tensor(name="b", shape=[2], datatype="BOOL", data=[True, False]),
        )
    )

    assert list(made.raw_input_contents) == [b"\x02\0\0\0\xc3\xa9\0\0\0\0", b"\x01\0"]


def test_binary_tensors_are_cut_from_the_end_of_the_body() -> None:
    """In the order of the inputs; those in JSON take none of the bytes."""
    document = body(
        tensor(name="a", shape=[2], datatype="INT8", data=None, parameters={"binary_data_size": 2}),
        tensor(name="b", shape=[1], datatype="INT8", data=[7]),
        tensor(name="c", shape=[1], datatype="INT8", data=None, parameters={"binary_data_size": 1}),
    )
    made = converted(document + b"\x01\x02\x03", len(document))

    assert list(made.raw_input_contents) == [b"\x01\x02", b"\x07", b"\x03"]
    assert not made.inputs[0].parameters


def test_parameters_keep_their_types() -> None:
    parameters = {"timeout": 5, "big": 2**63, "p": 0.5, "on": True, "s": "t"}
    made = converted(
        body(tensor(), parameters=parameters | {"binary_data_output": True}, id="mine")
    )

    assert made.id == "mine"
    assert made.parameters["timeout"].int64_param == 5
    assert made.parameters["big"].uint64_param == 2**63
    assert made.parameters["p"].double_param == 0.5
    assert made.parameters["on"].bool_param
    assert made.parameters["s"].string_param == "t"
    assert "binary_data_output" not in made.parameters


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"inputs": ', "the body is not JSON"),
        (b"[]", "body: "),
        (b"{}", "inputs: required, but missing"),
        (
            body(tensor(shape=[2**62, 2, 0])),
            "inputs[0].shape: sizes must be >= 0 and their product",
        ),
        (
            body(tensor(shape=[10**17] * 64)),
            "inputs[0].shape: sizes must be >= 0 and their product",
        ),
        (body(tensor(shape=[1] * 65)), "inputs[0].shape: may have 64 elements at most"),
        (body(tensor(dat=[1])), "inputs[0].dat: unknown field"),
        (body(tensor(shape=[-1])), "inputs[0].shape[0]: must be greater than or equal to 0"),
        (body(tensor(data=[1, 2, 3])), "inputs[0] ('x'): shape [1, 4] has 4 elements, got 3"),
        (body(tensor(data=["a"] * 4)), "('x'): elements of FP32 must be float or int"),
        (body(tensor(datatype="INT8", data=[1.5] * 4)), "('x'): elements of INT8 must be int"),
        (body(tensor(datatype="INT8", data=[128] * 4)), "('x'): INT8 cannot hold an element"),
        (body(tensor(datatype="FP16", data=[1e9] * 4)), "('x'): FP16 cannot hold an element"),
        (body(tensor(datatype="BOOL")), "('x'): elements of BOOL must be bool"),
        (body(tensor(datatype="BYTES")), "('x'): elements of BYTES must be strings in JSON"),
        (body(tensor(datatype="BF16")), "('x'): datatype 'BF16' has no JSON form"),
        (body(tensor(data=None)), "('x'): give data, or parameters.binary_data_size"),
        (body(tensor(parameters={"binary_data_size": 4})), "binary_data_size, not both"),
        (
            body(tensor(data=None, parameters={"binary_data_size": 16})),
            "inputs[0] ('x'): binary_data_size is 16, and the body has 0 bytes left",
        ),
        (
            body(tensor(data=None, parameters={"binary_data_size": "16"})),
            "('x'): binary_data_size must be an integer >= 0, got '16'",
        ),
        (body(tensor(), parameters={"n": 2**64}), "parameters.n: integers have 64 bits"),
        (b" " * (MAX_JSON_BYTES + 1), "send large tensors as binary data"),
    ],
)
def test_a_mistake_is_refused_by_its_place_and_the_tensors_name(data: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        converted(data)
    assert words in caught.value.message


def test_bytes_that_belong_to_no_input_are_refused() -> None:
    document = body(tensor())

    with pytest.raises(InvalidArgument, match="4 bytes of binary data"):
        converted(document + bytes(4), len(document))
    with pytest.raises(InvalidArgument, match=r"must be 0\.\.\d+, the size of the body"):
        converted(document, len(document) + 1)


def response() -> pb.ModelInferResponse:
    made = pb.ModelInferResponse(model_name="digits", model_version="1", id="mine")
    made.parameters["energy_j"].double_param = 3.6
    made.outputs.add(name="y", datatype="FP32", shape=[2])
    made.outputs.add(name="s", datatype="BYTES", shape=[1])
    made.raw_output_contents.extend([np.array([0.5, math.nan], "f4").tobytes(), b"\x02\0\0\0ok"])
    return made


def encoded(made: pb.ModelInferResponse, **rest: Any) -> tuple[dict[str, Any], bytes]:
    """The document of an answer, and the bytes after it."""
    wanted, _ = tensor_json.read(body(tensor(), **rest), None)
    content, size = tensor_json.answer(made.SerializeToString(), wanted)
    return json.loads(content[:size]), content[len(content) if size is None else size :]


def test_an_answer_in_json_has_its_receipt_and_null_for_what_is_no_number() -> None:
    document, after = encoded(response())

    assert document["id"] == "mine"
    assert document["parameters"] == {"energy_j": 3.6}
    assert [output["data"] for output in document["outputs"]] == [[0.5, None], ["ok"]]
    assert after == b""


def test_outputs_are_binary_by_name_or_by_default() -> None:
    one, after_one = encoded(
        response(), outputs=[{"name": "y", "parameters": {"binary_data": True}}]
    )
    rest, after_rest = encoded(
        response(),
        outputs=[{"name": "y", "parameters": {"binary_data": False}}, {"name": "s"}],
        parameters={"binary_data_output": True},
    )

    assert (
        one["outputs"][0]["parameters"]
        == {"binary_data_size": len(after_one)}
        == {"binary_data_size": 8}
    )
    assert "data" in one["outputs"][1]
    assert "data" in rest["outputs"][0]
    assert after_rest == b"\x02\0\0\0ok"


def test_outputs_that_a_server_sent_as_elements_are_read_alike() -> None:
    made = pb.ModelInferResponse(model_name="m")
    tensor_out = made.outputs.add(name="y", datatype="INT16", shape=[2])
    tensor_out.contents.int_contents.extend([1, -2])

    document, _ = encoded(made)

    assert document["outputs"][0]["data"] == [1, -2]


def test_an_output_without_json_form_names_bytes_as_the_way() -> None:
    made = response()
    made.raw_output_contents[1] = b"\x01\0\0\0\xff"

    with pytest.raises(FailedPrecondition, match="output 's': its bytes are not UTF-8; request it"):
        encoded(made)


def test_an_empty_body_is_an_object_without_fields() -> None:
    assert parsed_object(b"") == {}
    with pytest.raises(InvalidArgument, match="body"):
        parsed_object(b"[1]")


def test_what_kserves_client_adds_changes_nothing() -> None:
    """Members at the top that are not known, and null in place of what may be left out."""
    given = tensor() | {"parameters": None}
    sent = body(given, model_name="other", id=None, parameters=None, outputs=None, extra=[1])

    assert converted(sent) == converted(body(tensor()))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 4), st.data())
def test_nested_lists_are_read_row_by_row(
    shape: list[int], depth: int, data: st.DataObject
) -> None:
    """As deep as the shape, or flat from some size on, whatever white space is between."""
    depth = min(depth, len(shape) - 1)
    values = np.arange(math.prod(shape)).reshape([*shape[:depth], -1])
    texts = values.astype(str)
    for datatype, listed in (("INT16", values.tolist()), ("BYTES", texts.tolist())):
        indent = data.draw(st.sampled_from([None, 0, 1]))
        sent = json.dumps(
            {"inputs": [tensor(shape=shape, datatype=datatype, data=listed)]}, indent=indent
        )
        (raw,) = converted(sent.encode()).raw_input_contents
        elements = [struct.pack("<I", len(each)) + each.encode() for each in texts.ravel()]
        assert raw == (
            values.astype("<i2").tobytes() if datatype == "INT16" else b"".join(elements)
        )


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([2, 3], "[[1, 2], [3, 4, 5, 6]]"),
        ([2, 2], "[[1, 2], 3, 4]"),
        ([2, 2], "[1, 2], [3, 4]"),
        ([4], "[[1, 2, 3, 4]]"),
        ([2, 1], "[[1], []]"),
        ([2], "[1 2,]"),
        ([2**40, 0], "[[], []]"),
        ([1], "[" * 5000 + "1" + "]" * 5000),
        ([1], "[1e400]"),
        ([1], "[" + "9" * 5000 + "]"),
        ([1], "[{}]"),
        ([1], "[null]"),
    ],
)
@pytest.mark.parametrize("datatype", ["FP64", "INT64", "BYTES"])
def test_data_of_another_form_than_its_shape_is_refused(
    shape: list[int], data: str, datatype: str
) -> None:
    if datatype == "BYTES":
        data = re.sub(r"[0-9e]+", r'"\g<0>"', data)
    document = (
        f'{{"inputs":[{{"name":"x","shape":{shape},"datatype":"{datatype}","data":{data}}}]}}'
    )
    if datatype == "BYTES" and ("e400" in data or "9999" in data):
        assert converted(document.encode()).raw_input_contents  # a string like any other
        return
    with pytest.raises(InvalidArgument, match=r"inputs\[0\]|JSON"):
        converted(document.encode())


def test_a_name_with_escapes_hides_no_data() -> None:
    """The list is found in the text: "data" written otherwise would be another place's."""
    hidden = body(tensor()).replace(b'"data"', rb'"d\u0061ta"')
    with pytest.raises(InvalidArgument, match="data"):
        converted(hidden)
    with pytest.raises(InvalidArgument, match="written without escapes"):
        converted(hidden.replace(b"[1, 2, 3, 4]", b"[0]"))


@pytest.mark.parametrize(
    "sent",
    [
        b'{"inputs": [%b]}' % b",".join([b"{}"] * 9000),
        b'{"inputs": [], "parameters": {%b}}' % b",".join(b'"%d": 1' % i for i in range(9000)),
        b'{"inputs": [], "more": [%b]}' % b",".join([b"[]"] * 9000),
        b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": [%b]}]}'
        % b",".join([b'""'] * 70_000),
    ],
)
def test_more_values_than_a_document_may_have_are_refused_before_they_are_read(sent: bytes) -> None:
    with pytest.raises(InvalidArgument, match="send large tensors as binary data") as caught:
        converted(sent)
    assert caught.value.reason == "JSON_TOO_LARGE"


def test_brackets_and_commas_in_a_text_are_no_values() -> None:
    """A prompt may have any number of them, and of quotes with a backslash."""
    text = '[{"a": 1}, \\"],' * 10_000
    made = converted(body(tensor(shape=[1], datatype="BYTES", data=[text]), parameters={"p": text}))

    assert made.parameters["p"].string_param == text
    assert made.raw_input_contents[0][4:].decode() == text

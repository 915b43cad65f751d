"""Requests are checked field by field, and answers have the requested outputs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from inference import grpc_service_pb2 as pb
from services.gpuagent.worker import tensors
from services.gpuagent.worker.onnx_engine import Signature, TensorSpec
from services.gpuagent.worker.tensor_messages import metadata, parse, response
from services.kit.errors import InvalidArgument, NotFound
from tests.support.examples import examples

SIGNATURE = Signature(
    inputs=(TensorSpec("x", "FP32", (-1, 2)), TensorSpec("text", "BYTES", (-1,))),
    outputs=(TensorSpec("y", "FP32", (-1, 2)), TensorSpec("label", "INT64", (-1,))),
)
FIXED = Signature((TensorSpec("x", "FP32", (3, 2)),), (TensorSpec("y", "FP32", (3, 2)),))
NUMBERS = [
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
    "FP32", "FP64",
]  # fmt: skip


def _request() -> pb.ModelInferRequest:
    """A right request of two items."""
    request = pb.ModelInferRequest(model_name="m", id="q")
    x = request.inputs.add(name="x", datatype="FP32", shape=[2, 2])
    x.contents.fp32_contents.extend([1, 2, 3, 4])
    text = request.inputs.add(name="text", datatype="BYTES", shape=[2])
    text.contents.bytes_contents.extend([b"a", "ö".encode()])
    return request


def _raw_request() -> pb.ModelInferRequest:
    """The same, raw."""
    request = _request()
    for tensor in request.inputs:
        tensor.ClearField("contents")
    raw = np.array([1, 2, 3, 4], np.float32).tobytes()
    request.raw_input_contents.extend([raw, b"\1\0\0\0a\2\0\0\0" + "ö".encode()])
    return request


@pytest.mark.parametrize("make", [_request, _raw_request])
def test_typed_and_raw_contents_mean_the_same(make: Callable[[], pb.ModelInferRequest]) -> None:
    inference = parse(make().SerializeToString(), SIGNATURE)

    assert inference.feeds["x"].tolist() == [[1, 2], [3, 4]]
    assert inference.feeds["text"].tolist() == ["a", "ö"]
    assert (inference.id, inference.model, inference.items) == ("q", "m", 2)
    assert list(inference.outputs) == [0, 1]


def _change(path: str, value: Any) -> Callable[[pb.ModelInferRequest], None]:
    def change(request: pb.ModelInferRequest) -> None:
        owner: Any = request
        *steps, last = path.split(".")
        for step in steps:
            owner = owner[int(step)] if step.isdigit() else getattr(owner, step)
        if isinstance(value, list):
            del getattr(owner, last)[:]
            getattr(owner, last).extend(value)
        else:
            setattr(owner, last, value)

    return change


def _both(request: pb.ModelInferRequest) -> None:
    request.inputs[1].contents.bytes_contents.append(b"a")


def _raw(request: pb.ModelInferRequest, number: int, data: bytes) -> None:
    request.raw_input_contents[number] = data


def _empty(request: pb.ModelInferRequest) -> None:
    _change("inputs.0.shape", [0, 2])(request)
    _change("inputs.1.shape", [0])(request)
    _change("raw_input_contents", [b"", b""])(request)


def _uneven(request: pb.ModelInferRequest) -> None:
    _change("inputs.1.shape", [1])(request)
    _raw(request, 1, b"\0\0\0\0")


MISTAKES = [
    ("inputs[0].name", "no input 'z'; the model has x, text", _change("inputs.0.name", "z")),
    ("inputs[1].name", "given twice", _change("inputs.1.name", "x")),
    ("inputs", "text missing", lambda r: (r.inputs.pop(), r.raw_input_contents.pop())),
    ("inputs[0].datatype", "takes FP32, got 'FP64'", _change("inputs.0.datatype", "FP64")),
    ("inputs[0].shape", "takes \\[-1, 2\\]", _change("inputs.0.shape", [2, 3])),
    ("inputs[0].shape", "got \\[4\\]", _change("inputs.0.shape", [4])),
    ("inputs[0].shape", "sizes must be >= 0", _change("inputs.0.shape", [-2, 2])),
    ("inputs[0].shape", ">= 1, got 0", _empty),
    ("inputs[0].shape", "product at most", _change("inputs.0.shape", [2**62, 2**62])),
    ("inputs[0].shape", "has 9999 sizes, and may have 64", _change("inputs.0.shape", [1] * 9999)),
    ("inputs", "same number of items", _uneven),
    ("raw_input_contents", "one entry per input, 2, got 1", lambda r: r.raw_input_contents.pop()),
    ("raw_input_contents[0]", "takes 16 bytes, got 3", lambda r: _raw(r, 0, b"abc")),
    ("raw_input_contents[1]", "cut short", lambda r: _raw(r, 1, b"\5\0\0\0a")),
    ("raw_input_contents[1]", "has 2 elements, got 3", lambda r: _raw(r, 1, b"\0\0\0\0" * 3)),
    ("raw_input_contents[1]", "UTF-8", lambda r: _raw(r, 1, b"\1\0\0\0\xff" + b"\0" * 4)),
    ("inputs[1].contents", "not both", _both),
    ("outputs[0].name", "no output 'z'; the model has y, label", lambda r: r.outputs.add(name="z")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "says", "spoil"),
    MISTAKES,
    ids=lambda value: value[:40] if isinstance(value, str) else "spoilt",
)
def test_a_mistake_is_reported_with_its_field_and_what_is_allowed(
    field: str, says: str, spoil: Callable[[pb.ModelInferRequest], object]
) -> None:
    request = _raw_request()
    spoil(request)

    with pytest.raises(InvalidArgument, match=says) as refusal:
        parse(request.SerializeToString(), SIGNATURE)
    assert refusal.value.field == field


def test_too_few_typed_elements_are_reported_with_their_field() -> None:
    request = _request()
    request.inputs[0].contents.fp32_contents.pop()

    with pytest.raises(InvalidArgument, match="has 4 elements, got 3") as refusal:
        parse(request.SerializeToString(), SIGNATURE)
    assert refusal.value.field == "inputs[0].contents.fp32_contents"


def test_an_element_that_does_not_fit_its_datatype_is_refused() -> None:
    request = pb.ModelInferRequest()
    small = request.inputs.add(name="x", datatype="INT8", shape=[1])
    small.contents.int_contents.append(1000)
    signature = Signature((TensorSpec("x", "INT8", (-1,)),), SIGNATURE.outputs)

    with pytest.raises(InvalidArgument, match="INT8 cannot hold it"):
        parse(request.SerializeToString(), signature)


def test_bytes_that_are_not_a_request_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="not a serialized ModelInferRequest"):
        parse(b"\xff\xff", SIGNATURE)


def test_another_version_is_not_found() -> None:
    request = _request()
    request.model_version = "2"

    with pytest.raises(NotFound, match="version 1 only"):
        parse(request.SerializeToString(), SIGNATURE)


def test_a_model_of_fixed_shape_takes_that_shape_and_shares_no_batch() -> None:
    request = pb.ModelInferRequest()
    x = request.inputs.add(name="x", datatype="FP32", shape=[3, 2])
    x.contents.fp32_contents.extend([0.0] * 6)

    inference = parse(request.SerializeToString(), FIXED)

    assert (inference.items, inference.kind) == (3, None)


def test_only_the_wanted_outputs_are_answered() -> None:
    request = _request()
    request.outputs.add(name="label")
    inference = parse(request.SerializeToString(), SIGNATURE)

    data = response(inference, SIGNATURE, [np.zeros((2, 2), np.float32), np.array([7, 8])])

    answer = pb.ModelInferResponse.FromString(data)
    assert (answer.id, answer.model_name, answer.model_version) == ("q", "m", "1")
    assert [(t.name, t.datatype, list(t.shape)) for t in answer.outputs] == [
        ("label", "INT64", [2])
    ]
    assert np.frombuffer(answer.raw_output_contents[0], np.int64).tolist() == [7, 8]


def test_metadata_describes_the_signature() -> None:
    described = pb.ModelMetadataResponse.FromString(metadata(SIGNATURE))

    assert [(t.name, t.datatype, list(t.shape)) for t in described.inputs] == [
        ("x", "FP32", [-1, 2]),
        ("text", "BYTES", [-1]),
    ]
    assert list(described.versions) == ["1"]


@examples(0.4)
@given(st.data(), st.sampled_from(NUMBERS))
def test_raw_numbers_round_trip(data: st.DataObject, datatype: str) -> None:
    dtype = tensors.decode(b"", datatype, [0], field="x").dtype
    array = data.draw(arrays.arrays(dtype, arrays.array_shapes(max_side=4)))

    raw = tensors.encode(array, datatype)

    again = tensors.decode(raw, datatype, array.shape, field="x")
    assert again.dtype == dtype
    assert again.tobytes() == array.tobytes()


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=10))
def test_raw_strings_round_trip(words: list[str]) -> None:
    array = np.array(words, dtype=object)

    raw = tensors.encode(array, "BYTES")

    assert tensors.decode(raw, "BYTES", [len(words)], field="x").tolist() == words


def test_an_error_about_contents_names_the_tensor_beside_its_index() -> None:
    request = _raw_request()
    request.raw_input_contents[0] += b"x"

    with pytest.raises(InvalidArgument, match=r"raw_input_contents\[0\] \('") as refusal:
        parse(request.SerializeToString(), SIGNATURE)
    assert refusal.value.field == "raw_input_contents[0]"

"""KServe's first protocol: instances become a batch, and the answer rows."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import grpc_service_pb2 as pb
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.router.edge import predict

Spec = pb.ModelMetadataResponse.TensorMetadata
IMAGE = pb.ModelMetadataResponse(
    name="m", inputs=[Spec(name="x", datatype="FP32", shape=[-1, 2, 3])]
)
TWO = pb.ModelMetadataResponse(
    name="m",
    inputs=[
        Spec(name="text", datatype="BYTES", shape=[-1, 1]),
        Spec(name="n", datatype="INT64", shape=[-1]),
    ],
)


def sent(instances: Any, described: pb.ModelMetadataResponse) -> pb.ModelInferRequest:
    message = predict.message({"instances": instances}, described)
    return pb.ModelInferRequest.FromString(message)


def answered(*outputs: tuple[str, np.ndarray]) -> Any:
    response = pb.ModelInferResponse(model_name="m")
    for name, array in outputs:
        response.outputs.add(name=name, datatype="FP32", shape=array.shape)
        response.raw_output_contents.append(array.astype(np.float32).tobytes())
    return json.loads(predict.answer(response.SerializeToString()))["predictions"]


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_instances_are_the_rows_of_a_batch_and_predictions_those_of_the_answer(
    count: int, seed: int
) -> None:
    """Whatever the values, nothing is lost, added or moved on either way."""
    batch = np.random.default_rng(seed).normal(size=(count, 2, 3)).astype(np.float32)
    request = sent(batch.tolist(), IMAGE)

    assert list(request.inputs[0].shape) == [count, 2, 3]
    assert np.array_equal(np.frombuffer(request.raw_input_contents[0], np.float32), batch.ravel())
    assert np.array_equal(np.asarray(answered(("y", batch)), np.float32), batch)


def test_several_inputs_and_outputs_are_objects_by_name() -> None:
    """Bytes may be in base 64, and a size of 1 that values leave out is added."""
    request = sent([{"text": {"b64": "w6k="}, "n": 1}, {"text": "b", "n": 2}], TWO)
    rows = answered(("a", np.array([1.0, 2.0])), ("b", np.array([[1.0], [2.0]])))

    assert [list(each.shape) for each in request.inputs] == [[2, 1], [2]]
    assert request.raw_input_contents[0] == b"\x02\0\0\0\xc3\xa9\x01\0\0\0b"
    assert rows == [{"a": 1.0, "b": [1.0]}, {"a": 2.0, "b": [2.0]}]


@pytest.mark.parametrize(
    ("instances", "described", "words"),
    [
        ([], IMAGE, "instances: must be a list of at least one instance"),
        (None, IMAGE, "instances: must be a list"),
        ([[[1, 2, 3], [4, 5]]], IMAGE, "instances: x: "),
        ([[["a"]]], IMAGE, "instances: x: elements of FP32 must be"),
        ([{"y": 1}], IMAGE, "instances[0].y: is no input of the model; it has x"),
        ([1], TWO, "instances[0]: must be an object of the inputs text, n"),
        ([{"text": "a", "n": 1}, {"n": 1}], TWO, "instances[1].text: required, but missing"),
        ([{"text": {"b64": "!"}, "n": 1}], TWO, "instances[0].text: must be a value"),
    ],
)
def test_a_wrong_instance_is_refused_by_its_place(
    instances: Any, described: pb.ModelMetadataResponse, words: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        sent(instances, described)
    assert words in refused.value.message


def test_an_answer_of_too_many_lists_is_refused_before_it_is_nested() -> None:
    """Of 64 sizes, all but one of them 1: 20 kB were 1.3 million lists, .8 s and 97 MiB."""
    found = pb.ModelInferResponse(raw_output_contents=[bytes(20_000)])
    found.outputs.add(name="y", datatype="UINT8", shape=[20_000] + [1] * 63)
    with pytest.raises(FailedPrecondition, match="is more than 262144 lists"):
        predict.answer(found.SerializeToString())
    found.outputs[0].shape[:] = [1] * 64  # whatever its contents are
    with pytest.raises(FailedPrecondition, match="is more than 262144 lists"):
        predict.answer(found.SerializeToString())
    found.outputs[0].shape[:] = [20_000] + [1] * 13
    assert predict.answer(found.SerializeToString()).count(b"0") == 20_000


def test_an_answer_of_too_many_sizes_is_refused_before_it_is_nested() -> None:
    """JSON as deep as a peer's shape is long: each size costs a list."""
    found = pb.ModelInferResponse(raw_output_contents=[bytes(4)])
    found.outputs.add(name="y", datatype="FP32", shape=[1] * 300)
    with pytest.raises(FailedPrecondition, match="has 300 sizes, and may have 64"):
        predict.answer(found.SerializeToString())

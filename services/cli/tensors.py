"""numpy arrays <-> tensors of the Open Inference Protocol."""

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from inference.grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from services.gpuagent.worker.tensors import BYTES, DATATYPES, decode, encode
from services.kit.errors import InvalidArgument


def request_of(
    model: str, name: str, datatype: str, array: NDArray[Any], request_id: str = ""
) -> ModelInferRequest:
    """Return a request with one raw input tensor.

    Args:
        model: Model that is to answer.
        name: Its input's name.
        datatype: Its datatype, for example "FP32"; the array is cast to it. BYTES: texts.
        array: Values, batch dimension first.
        request_id: Echoed in the response.

    Raises:
        InvalidArgument: The datatype has no numpy counterpart, or the array has texts where numbers
            are taken.
    """
    if datatype not in DATATYPES:
        raise InvalidArgument(f"{name}: cannot send {datatype}; can send {', '.join(DATATYPES)}")
    if array.dtype.kind in "OUS" and datatype != BYTES:
        raise InvalidArgument(f"{name}: the model takes {datatype}, and the array has texts")
    return ModelInferRequest(
        model_name=model,
        id=request_id,
        inputs=[
            ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=array.shape)
        ],
        raw_input_contents=[encode(array, datatype)],
    )


def outputs_of(response: ModelInferResponse) -> dict[str, NDArray[Any]]:
    """Return a response's raw output tensors by name."""
    return {
        output.name: decode(raw, output.datatype, tuple(output.shape), field=output.name)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=False)
        if output.datatype in DATATYPES
    }


def texts_of(response: ModelInferResponse, name: str) -> list[str]:
    """Return the elements of a raw BYTES output; none where the response does not have it."""
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if (output.name, output.datatype) == (name, "BYTES"):
            return list(_elements(raw))
    return []


def _elements(raw: bytes) -> Iterator[str]:
    """Yield raw BYTES elements: each a 4-byte little-endian length and UTF-8."""
    at = 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        yield raw[at + 4 : end].decode(errors="replace")
        at = end


def parameters_of(response: ModelInferResponse) -> dict[str, Any]:
    """Return a response's parameters as Python values."""
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
        for key, value in response.parameters.items()
    }

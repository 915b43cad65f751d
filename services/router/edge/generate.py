"""The generate extension: members of a JSON object are a model's inputs, and its outputs.

Source: Triton, "Generate Extension".
"""

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from inference import grpc_service_pb2 as pb
from services.kit.errors import InvalidArgument
from services.kit.tensor_shape import elements_of
from services.router.edge.tensor_data import pack
from services.router.edge.tensor_json import elements, parameters, raw, set_parameter


def message(given: Mapping[str, Any], described: pb.ModelMetadataResponse, version: str) -> bytes:
    """Return a serialized inference.ModelInferRequest.

    Args:
        given: The object; other members than inputs are parameters, and null as if not given.
        described: The model's metadata.
        version: Version of the model; "": any.

    Raises:
        InvalidArgument: A member is not what the model takes; names it.
    """
    made = pb.ModelInferRequest(model_name=described.name, model_version=version)
    inputs = {each.name: each for each in described.inputs}
    stated = given.get("parameters") or {}
    if not isinstance(stated, dict):
        raise InvalidArgument.at("parameters", "must be an object")
    for name, value in {**stated, **given}.items():
        if value is None or (name == "parameters" and value is stated):
            continue
        if name in given and name in inputs:
            _add_input(made, inputs[name], value)
        elif name == "id" and name in given:
            made.id = _text(value, name)
        elif isinstance(value, bool | int | float | str):
            set_parameter(made.parameters[name], value, name)
        else:
            raise InvalidArgument.at(
                name, "is no input of the model; parameters are strings, numbers or truth values"
            )
    return made.SerializeToString()


def answer(body: bytes) -> bytes:
    """Return an answer as a JSON object; an output of one element is that element.

    Args:
        body: A serialized inference.ModelInferResponse.

    Raises:
        FailedPrecondition: An output has no form in JSON; names it.
    """
    found = pb.ModelInferResponse.FromString(body)
    head = {"id": found.id} if found.id else {}
    head |= {"model_name": found.model_name, "model_version": found.model_version}
    pieces = [to_json(head | {"parameters": parameters(found.parameters)})[:-1]]
    for index, tensor in enumerate(found.outputs):
        values = b"".join(elements(raw(found, index), tensor.datatype, tensor.name))
        one = elements_of(tensor.shape, field="outputs") == 1
        pieces += (b",", to_json(tensor.name), b":", values[1:-1] if one else values)
    return b"".join((*pieces, b"}"))


def has_outputs(body: bytes) -> bool:
    """Return whether a serialized inference.ModelInferResponse has any."""
    return bool(pb.ModelInferResponse.FromString(body).outputs)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument.at(name, "must be a string")
    return value


def _add_input(
    made: pb.ModelInferRequest, spec: pb.ModelMetadataResponse.TensorMetadata, value: Any
) -> None:
    """Add an input: an element, or a list, nested where the input has several dimensions."""
    sizes, inner = [], value
    while isinstance(inner, list):
        sizes.append(len(inner))
        inner = inner[0] if inner else None
    shape = [1] * (len(spec.shape) - len(sizes)) + sizes
    made.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
    out = bytearray()
    expected = elements_of(shape, field=spec.name)
    listed = value if sizes else [value]
    try:
        pack(out, to_json(listed), spec.datatype, sizes or [1], expected)
    except InvalidArgument as error:
        raise InvalidArgument.at(spec.name, error.message) from None
    made.raw_input_contents.append(bytes(out))

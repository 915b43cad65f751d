"""KServe's first protocol: a list of instances becomes a batch, and the answer a list of rows.

Source: KServe, "Data Plane (V1)"; TensorFlow Serving, "RESTful API", row format.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from inference import grpc_service_pb2 as pb
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.tensor_shape import MAX_RANK, elements_of
from services.router.edge.tensor_data import pack
from services.router.edge.tensor_json import elements, raw

INSTANCES = "instances"
MAX_LISTS = 2**18
"""Lists of an answer, each of which may hold one number: 64 sizes of 1 make one 64 of them."""


def message(given: Mapping[str, Any], described: pb.ModelMetadataResponse) -> bytes:
    """Return a serialized inference.ModelInferRequest.

    Args:
        given: The document: `instances`, a list with one element per item of the batch: its value
            where the model has one input, else an object of its inputs by name. Bytes may be
            {"b64": "..."}.
        described: The model's metadata.

    Raises:
        InvalidArgument: An instance is not what the model takes; names it.
    """
    instances = given.get(INSTANCES)
    if not isinstance(instances, list) or not instances:
        raise InvalidArgument.at(INSTANCES, "must be a list of at least one instance")
    names = [each.name for each in described.inputs]
    made = pb.ModelInferRequest(model_name=described.name)
    for spec in described.inputs:
        column = [_value(each, spec.name, names, at) for at, each in enumerate(instances)]
        _add_input(made, spec, column)
    return made.SerializeToString()


def answer(body: bytes) -> bytes:
    """Return an answer as {"predictions": [...]}, one row per item of the batch.

    A row is the value of the model's output, or an object of its outputs where it has several.

    Args:
        body: A serialized inference.ModelInferResponse.

    Raises:
        FailedPrecondition: An output has no form in JSON, or no row per item; names it.
    """
    found = pb.ModelInferResponse.FromString(body)
    for tensor in found.outputs:
        if len(tensor.shape) > MAX_RANK:
            why = f"has {len(tensor.shape)} sizes, and may have {MAX_RANK}"
            raise FailedPrecondition.at(f"outputs.{tensor.name[:64]}", why)
    columns = {
        tensor.name: _rows(raw(found, index), tensor) for index, tensor in enumerate(found.outputs)
    }
    if len({len(rows) for rows in columns.values()}) > 1:
        sizes = ", ".join(f"{name} {len(rows)}" for name, rows in columns.items())
        raise FailedPrecondition(
            f"outputs have different numbers of rows ({sizes}); use /v2/models/{found.model_name}"
            "/infer",
            field="outputs",
        )
    rows: Iterable[Any] = next(iter(columns.values()), [])
    if len(columns) > 1:
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return to_json({"predictions": list(rows)}, inf_nan_mode="null")


def _value(instance: Any, name: str, names: Sequence[str], at: int) -> Any:
    """Return an instance's value of an input."""
    place = f"{INSTANCES}[{at}]"
    if isinstance(instance, dict) and instance.keys() != {"b64"}:
        unknown = instance.keys() - set(names)
        if unknown:
            raise InvalidArgument.at(
                f"{place}.{min(unknown)}", f"is no input of the model; it has {', '.join(names)}"
            )
        if name not in instance:
            raise InvalidArgument.at(f"{place}.{name}", "required, but missing")
        instance, place = instance[name], f"{place}.{name}"
    elif len(names) > 1:
        raise InvalidArgument.at(place, f"must be an object of the inputs {', '.join(names)}")
    if isinstance(instance, dict):
        return _decoded(instance, place)
    return instance


def _decoded(value: dict[str, Any], place: str) -> str:
    """Return bytes that are written in base 64, as the string that they must be."""
    text = value.get("b64")
    try:
        if len(value) == 1 and isinstance(text, str):
            return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        pass
    raise InvalidArgument.at(
        place, 'must be a value, a list, or {"b64": ...} of UTF-8; use /v2 for other bytes'
    )


def _add_input(
    made: pb.ModelInferRequest, spec: pb.ModelMetadataResponse.TensorMetadata, column: list[Any]
) -> None:
    """Add an input of one value per instance; sizes of 1 that values leave out are added."""
    sizes: list[int] = []
    inner: Any = column
    while isinstance(inner, list) and len(sizes) < MAX_RANK:
        sizes.append(len(inner))
        inner = inner[0] if inner else None
    shape = sizes + [1] * (len(spec.shape) - len(sizes))
    made.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
    out = bytearray()
    expected = elements_of(shape, field=INSTANCES)
    try:
        pack(out, to_json(column), spec.datatype, sizes, expected)
    except InvalidArgument as error:
        raise InvalidArgument.at(INSTANCES, f"{spec.name}: {error.message}") from None
    made.raw_input_contents.append(bytes(out))


def _rows(contents: bytes, tensor: pb.ModelInferResponse.InferOutputTensor) -> list[Any]:
    """Return a tensor as a list, nested by its shape."""
    found = from_json(b"".join(elements(contents, tensor.datatype, tensor.name)))
    lists = 0
    for size in reversed(tensor.shape[1:]):
        count = len(found) // size if size else 0
        lists += count
        if lists > MAX_LISTS:
            why = f"is more than {MAX_LISTS} lists in JSON; use /v2/models/MODEL/infer"
            raise FailedPrecondition.at(f"outputs.{tensor.name[:64]}", why)
        found = [found[at * size : (at + 1) * size] for at in range(count)]
    return list(found)

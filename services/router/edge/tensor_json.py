"""The Open Inference Protocol's tensors over HTTP <-> its messages.

A tensor's elements are a JSON list, or bytes after the JSON document ("binary tensor data
extension"); in messages they are raw contents. Bytes are passed on as they are.
Source: KServe, "Open Inference Protocol (V2)", HTTP/REST; Triton, "Binary Tensor Data Extension".
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import (
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    NonNegativeInt,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)
from pydantic_core import PydanticCustomError, to_json

from inference import grpc_service_pb2 as pb
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.json_bounds import check_size
from services.kit.protobuf_wire import varint
from services.kit.tensor_shape import MAX_RANK, elements_of
from services.router.edge.documents import Document, parsed
from services.router.edge.tensor_data import FORMATS, LENGTH, pack, taken_out, written

_RAW_TAG: Final = b"\x3a"  # field 7, raw_input_contents
_NO_FORMAT: Final = ("", "")
_HEADER: Final = "Inference-Header-Content-Length"


def _given(parameters: object) -> object:
    if not isinstance(parameters, dict):
        return parameters
    return {name: value for name, value in parameters.items() if value is not None}


Parameters = Annotated[
    dict[str, StrictBool | StrictInt | StrictFloat | StrictStr], BeforeValidator(_given)
]
"""Parameters by name; null is as if not given."""


def _place(given: object) -> int:
    match given:
        case [int(place)]:
            return place
        case _:
            raise PydanticCustomError("data", "must be a list of numbers, truth values or strings")


class _Input(Document):
    """An input tensor. Attributes: data: the place of its list among those taken out."""

    name: str
    shape: Annotated[tuple[NonNegativeInt, ...], FailFast(), Field(max_length=MAX_RANK)]
    datatype: str
    parameters: Parameters = Field(default_factory=dict)
    data: Annotated[int, PlainValidator(_place)] | None = None


class _Wanted(Document):
    name: str
    parameters: Parameters = Field(default_factory=dict)


class InferRequest(Document):
    """The JSON document of a request; as in Triton, members that are not known are passed over.

    Attributes:
        id: Identifier of the request; echoed.
        inputs: The input tensors.
        outputs: The outputs to return; empty: all.
        parameters: Of the request: `timeout` (microseconds), `priority`, the model's own.
    """

    model_config = ConfigDict(extra="ignore")

    id: str = ""
    inputs: Annotated[tuple[_Input, ...], FailFast()]
    outputs: Annotated[tuple[_Wanted, ...], FailFast()] = ()
    parameters: Parameters = Field(default_factory=dict)

    @property
    def binary(self) -> bool:
        """True where any output shall be bytes after the JSON document."""
        return self.parameters.get("binary_data_output") is True or any(
            each.parameters.get("binary_data") for each in self.outputs
        )

    def wants_binary(self, output: str) -> bool:
        """Return whether an output shall be bytes after the JSON document."""
        default = self.parameters.get("binary_data_output") is True
        for wanted in self.outputs:
            if wanted.name == output:
                return bool(wanted.parameters.get("binary_data", default))
        return default


class Tensors(NamedTuple):
    """Tensors of a request. Attributes: lists (of `data`, JSON), after (bytes after the JSON)."""

    lists: Sequence[bytes | bytearray]
    after: memoryview


def read(body: bytes | bytearray, json_bytes: int | None) -> tuple[InferRequest, Tensors]:
    """Return a request's document, and its tensors.

    Args:
        body: The body of the HTTP request.
        json_bytes: Size of the document; None: it is the whole body.

    Raises:
        InvalidArgument: It is not such a document; the message says where.
    """
    size = len(body) if json_bytes is None else json_bytes
    if not 0 <= size <= len(body):
        raise InvalidArgument(
            f"{_HEADER}: must be 0..{len(body)}, the size of the body, got {size}",
            field=_HEADER,
        )
    after = memoryview(body)[size:]
    document = body if json_bytes is None else body[:size]
    check_size(document)
    document, lists = taken_out(document)
    return parsed(InferRequest, document), Tensors(lists, after)


def message(request: InferRequest, model: str, version: str, tensors: Tensors) -> bytes:
    """Return a serialized inference.ModelInferRequest.

    Args:
        request: The document.
        model: Name of the model.
        version: Version of the model; "": any.
        tensors: The elements of its inputs.

    Raises:
        InvalidArgument: The elements of an input are not what it says; names the input.
    """
    found = pb.ModelInferRequest(model_name=model, model_version=version, id=request.id)
    _set_parameters(found, request.parameters, "", without="binary_data_output")
    expected = [
        elements_of(each.shape, field=f"inputs[{index}].shape")
        for index, each in enumerate(request.inputs)
    ]
    for index, each in enumerate(request.inputs):
        tensor = found.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        place = f"inputs[{index}]."
        _set_parameters(tensor, each.parameters, place, without="binary_data_size")
    for index, wanted in enumerate(request.outputs):
        output = found.outputs.add(name=wanted.name)
        place = f"outputs[{index}]."
        _set_parameters(output, wanted.parameters, place, without="binary_data")
    made, after, position = bytearray(found.SerializeToString()), tensors.after, 0
    for index, each in enumerate(request.inputs):
        size = _binary_size(each, index)
        start = len(made)
        if size is None:
            _pack(made, each, index, tensors.lists, expected[index])
        else:
            left = len(after) - position
            if size > left:
                raise _at(
                    each, index, f"binary_data_size is {size}, and the body has {left} bytes left"
                )
            made += after[position : position + size]
            position += size
        made[start:start] = _RAW_TAG + varint(len(made) - start)
    if position != len(after):
        raise InvalidArgument(
            f"the body has {len(after)} bytes of binary data, and the inputs' binary_data_size add"
            f" up to {position}",
            field="inputs",
        )
    return made  # type: ignore[return-value]  # large messages of gRPC are bytearrays, too


def raw_message(
    body: bytes | bytearray, described: pb.ModelMetadataResponse, version: str
) -> tuple[InferRequest, bytes]:
    """Return the request that a body without a JSON document is: the one input of a model.

    Source: Triton, "Binary Tensor Data Extension", raw binary request.

    Args:
        body: The elements; of BYTES: the only one, without its size.
        described: The model's metadata.
        version: Version of the model; "": any.

    Raises:
        InvalidArgument: The model has several inputs, or nothing says the shape.
    """
    if len(described.inputs) != 1:
        names = ", ".join(each.name for each in described.inputs)
        raise InvalidArgument.at(
            _HEADER, f"0 is for models of one input; {described.name!r} has {names}"
        )
    (spec,) = described.inputs
    shape, size = list(spec.shape), FORMATS.get(spec.datatype, _NO_FORMAT)[0]
    elements_given = len(body) // struct.calcsize(size) if size else 1
    if spec.datatype == "BYTES":
        body = LENGTH.pack(len(body)) + body
    free = [at for at, each in enumerate(shape) if each < 0]
    if len(free) > 1 and free[0] == 0:
        shape[free.pop(0)] = 1  # one item
    if len(free) > 1:
        raise InvalidArgument.at(
            _HEADER, f"0 is for a shape with one free size; {spec.name!r} has {list(spec.shape)}"
        )
    for at in free:
        shape[at] = max(elements_given // math.prod(each for each in shape if each > 0), 1)
    made = pb.ModelInferRequest(model_name=described.name, model_version=version)
    made.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
    head = made.SerializeToString()
    wanted = InferRequest(inputs=(), parameters={"binary_data_output": True})
    return wanted, b"".join((head, _RAW_TAG, varint(len(body)), body))


def answer(body: bytes, request: InferRequest) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the size of its JSON document; None: it is all of it.

    Args:
        body: A serialized inference.ModelInferResponse.
        request: The document of the request.

    Raises:
        FailedPrecondition: An output cannot be written as JSON; names it.
    """
    found = pb.ModelInferResponse.FromString(body)
    binary: list[bytes] = []
    outputs: list[bytes] = []
    for index, tensor in enumerate(found.outputs):
        contents = raw(found, index)
        stated = parameters(tensor.parameters)
        output = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        data: Iterable[bytes] = ()
        if request.wants_binary(tensor.name):
            stated["binary_data_size"] = len(contents)
            binary.append(contents)
        else:
            data = (b',"data":', *elements(contents, tensor.datatype, tensor.name))
        described = to_json(output | ({"parameters": stated} if stated else {}))
        outputs.append(b"".join((described[:-1], *data, b"}")))
    head = to_json(
        {
            "model_name": found.model_name,
            "model_version": found.model_version,
            **({"id": found.id} if found.id else {}),
            "parameters": parameters(found.parameters),
        },
        inf_nan_mode="null",
    )
    document = b'%b,"outputs":[%b]}' % (head[:-1], b",".join(outputs))
    return (b"".join((document, *binary)), len(document)) if binary else (document, None)


def _at(tensor: _Input, index: int, problem: str) -> InvalidArgument:
    field = f"inputs[{index}]"
    return InvalidArgument(f"{field} ({tensor.name!r}): {problem}", field=field)


def _binary_size(tensor: _Input, index: int) -> int | None:
    size = tensor.parameters.get("binary_data_size")
    if size is None:
        if tensor.data is None:
            raise _at(tensor, index, "give data, or parameters.binary_data_size")
        return None
    if tensor.data is not None:
        raise _at(tensor, index, "give data or parameters.binary_data_size, not both")
    if type(size) is not int or size < 0:
        raise _at(tensor, index, f"binary_data_size must be an integer >= 0, got {size!r}")
    return size


def _pack(
    made: bytearray,
    tensor: _Input,
    index: int,
    lists: Sequence[bytes | bytearray],
    expected: int,
) -> None:
    """Append the elements of an input in JSON."""
    place = tensor.data
    if place is None or not 0 <= place < len(lists):
        raise _at(tensor, index, "data must be a list, and its name be written without escapes")
    try:
        pack(made, lists[place], tensor.datatype, tensor.shape, expected)
    except InvalidArgument as error:
        raise _at(tensor, index, error.message) from None


def elements(contents: bytes, datatype: str, name: str) -> Iterable[bytes]:
    """Return pieces of the JSON list of an output's elements.

    Args:
        contents: Raw contents.
        datatype: Of the elements.
        name: Of the output.

    Raises:
        FailedPrecondition: They have no form in JSON.
    """
    if datatype == "BYTES":
        return (to_json(_texts(contents, name)),)
    how, _ = FORMATS.get(datatype, _NO_FORMAT)
    if not how:
        raise FailedPrecondition(
            f"output {name!r}: {datatype} has no JSON form; request it with binary_data: true",
            field="outputs",
        )
    return written(contents, how)


def _texts(contents: bytes, name: str) -> list[str]:
    found, position = [], 0
    try:
        while position < len(contents):
            start = position + LENGTH.size
            position = start + LENGTH.unpack_from(contents, position)[0]
            found.append(contents[start:position].decode())
    except (UnicodeDecodeError, struct.error):
        raise FailedPrecondition(
            f"output {name!r}: its bytes are not UTF-8; request it with binary_data: true",
            field="outputs",
        ) from None
    return found


def raw(found: pb.ModelInferResponse, index: int) -> bytes:
    """Return the raw contents of an output, which a server may have sent as a list of elements."""
    if found.raw_output_contents:
        return found.raw_output_contents[index]
    tensor = found.outputs[index]
    if tensor.datatype == "BYTES":
        elements = tensor.contents.bytes_contents
        return b"".join(LENGTH.pack(len(element)) + element for element in elements)
    how, field = FORMATS.get(tensor.datatype, _NO_FORMAT)
    numbers = getattr(tensor.contents, field, ())
    return struct.pack(f"<{len(numbers)}{how or 'B'}", *numbers)


def _set_parameters(message: Any, given: Mapping[str, Any], field: str, without: str) -> None:
    for key, value in given.items():
        if key != without:
            set_parameter(message.parameters[key], value, f"{field}parameters.{key}")


def set_parameter(parameter: pb.InferParameter, value: bool | float | str, field: str) -> None:
    """Set a parameter to a value of its type.

    Args:
        parameter: The parameter.
        value: Its value.
        field: Path of the value, for errors.

    Raises:
        InvalidArgument: A number beyond 64 bits.
    """
    try:
        match value:
            case bool():
                parameter.bool_param = value
            case int() if value >= 2**63:
                parameter.uint64_param = value
            case int():
                parameter.int64_param = value
            case float() if math.isinf(value):
                raise InvalidArgument.at(field, "must be a number within the range of a double")
            case float():
                parameter.double_param = value
            case str():
                parameter.string_param = value
    except ValueError as error:
        raise InvalidArgument.at(field, f"integers have 64 bits: {error}") from None


def parameters(given: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    """Return the values of parameters; one without a value is left out."""
    chosen = {key: each.WhichOneof("parameter_choice") for key, each in given.items()}
    return {key: getattr(given[key], choice) for key, choice in chosen.items() if choice}

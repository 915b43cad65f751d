"""The Open Inference Protocol's tensors over HTTP <-> its messages.

A tensor's elements are a JSON list, or bytes after the JSON document ("binary tensor data
extension"); in messages they are raw contents. Bytes are passed on as they are.
Source: KServe, "Open Inference Protocol (V2)", HTTP/REST; Triton, "Binary Tensor Data Extension".
"""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field, NonNegativeInt, StrictBool, StrictFloat, StrictInt, StrictStr
from pydantic_core import to_json

from inference import grpc_service_pb2 as pb
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.protobuf_wire import varint
from services.router.edge.documents import Document, parsed

_RAW_TAG: Final = b"\x3a"  # field 7, raw_input_contents
_LENGTH: Final = struct.Struct("<I")
_FORMATS: Final = {
    "BOOL": ("?", "bool_contents"),
    "UINT8": ("B", "uint_contents"),
    "UINT16": ("H", "uint_contents"),
    "UINT32": ("I", "uint_contents"),
    "UINT64": ("Q", "uint64_contents"),
    "INT8": ("b", "int_contents"),
    "INT16": ("h", "int_contents"),
    "INT32": ("i", "int_contents"),
    "INT64": ("q", "int64_contents"),
    "FP16": ("e", ""),
    "FP32": ("f", "fp32_contents"),
    "FP64": ("d", "fp64_contents"),
}
"""Format of `struct`, and field of a message's elements, by datatype.

BYTES elements have a length each, BF16 travels in binary.
"""

_NO_FORMAT: Final = ("", "")

Parameters = dict[str, StrictBool | StrictInt | StrictFloat | StrictStr]


class _Input(Document):
    name: str
    shape: tuple[NonNegativeInt, ...]
    datatype: str
    parameters: Parameters = Field(default_factory=dict)
    data: list[Any] | None = None


class _Wanted(Document):
    name: str
    parameters: Parameters = Field(default_factory=dict)


class InferRequest(Document):
    """The JSON document of a request.

    Attributes:
        id: Identifier of the request; echoed.
        inputs: The input tensors.
        outputs: The outputs to return; empty: all.
        parameters: Of the request: `timeout` (microseconds), `priority`, the model's own.
    """

    id: str = ""
    inputs: tuple[_Input, ...]
    outputs: tuple[_Wanted, ...] = ()
    parameters: Parameters = Field(default_factory=dict)

    def wants_binary(self, output: str) -> bool:
        """Return whether an output shall be bytes after the JSON document."""
        default = self.parameters.get("binary_data_output") is True
        for wanted in self.outputs:
            if wanted.name == output:
                return bool(wanted.parameters.get("binary_data", default))
        return default


def read(body: bytes | bytearray, json_bytes: int | None) -> tuple[InferRequest, memoryview]:
    """Return a request's document, and the bytes after it.

    Args:
        body: The body of the HTTP request.
        json_bytes: Size of the document; None: it is the whole body.

    Raises:
        InvalidArgument: It is not such a document; the message says where.
    """
    size = len(body) if json_bytes is None else json_bytes
    if not 0 <= size <= len(body):
        raise InvalidArgument(
            f"Inference-Header-Content-Length: must be 0..{len(body)}, the size of the body,"
            f" got {size}",
            field="Inference-Header-Content-Length",
        )
    after = memoryview(body)[size:]
    return parsed(InferRequest, body if json_bytes is None else body[:size]), after


def message(request: InferRequest, model: str, version: str, after: memoryview) -> bytes:
    """Return a serialized inference.ModelInferRequest.

    Args:
        request: The document.
        model: Name of the model.
        version: Version of the model; "": any.
        after: The bytes after the document: the binary inputs, in their order.

    Raises:
        InvalidArgument: The elements of an input are not what it says; names the input.
    """
    found = pb.ModelInferRequest(model_name=model, model_version=version, id=request.id)
    _set_parameters(found, request.parameters, without="binary_data_output")
    raw: list[bytes | memoryview] = []
    position = 0
    for index, each in enumerate(request.inputs):
        tensor = found.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        _set_parameters(tensor, each.parameters, without="binary_data_size")
        size = _binary_size(each, index)
        if size is None:
            contents: bytes | memoryview = _packed(each, index)
        else:
            contents = after[position : position + size]
            position += size
            if position > len(after):
                raise _at(
                    each,
                    index,
                    f"binary_data_size is {size}, and the body has {len(contents)} bytes left",
                )
        raw += (_RAW_TAG, varint(len(contents)), contents)
    if position != len(after):
        raise InvalidArgument(
            f"the body has {len(after)} bytes of binary data, and the inputs' binary_data_size add"
            f" up to {position}",
            field="inputs",
        )
    for wanted in request.outputs:
        output = found.outputs.add(name=wanted.name)
        _set_parameters(output, wanted.parameters, without="binary_data")
    return b"".join((found.SerializeToString(), *raw))


def answer(body: bytes, request: InferRequest) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the size of its JSON document; None: it is all of it.

    Args:
        body: A serialized inference.ModelInferResponse.
        request: The document of the request.

    Raises:
        FailedPrecondition: An output cannot be written as JSON; names it.
    """
    found = pb.ModelInferResponse.FromString(body)
    raw = found.raw_output_contents
    binary: list[bytes] = []
    outputs: list[dict[str, Any]] = []
    for index, tensor in enumerate(found.outputs):
        contents = raw[index] if raw else _raw(tensor)
        stated = parameters(tensor.parameters)
        output = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if request.wants_binary(tensor.name):
            stated["binary_data_size"] = len(contents)
            binary.append(contents)
        else:
            output["data"] = _elements(contents, tensor.datatype, tensor.name)
        outputs.append(output | ({"parameters": stated} if stated else {}))
    document = to_json(
        {
            "model_name": found.model_name,
            "model_version": found.model_version,
            **({"id": found.id} if found.id else {}),
            "parameters": parameters(found.parameters),
            "outputs": outputs,
        },
        inf_nan_mode="null",
    )
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


def _packed(tensor: _Input, index: int) -> bytes:
    """Return the elements of a JSON list as raw contents."""
    elements = _flat(tensor.data or [], len(tensor.shape))
    expected = math.prod(tensor.shape)
    if len(elements) != expected:
        shape = list(tensor.shape)
        raise _at(tensor, index, f"shape {shape} has {expected} elements, got {len(elements)}")
    if tensor.datatype == "BYTES":
        if not all(isinstance(element, str) for element in elements):
            raise _at(tensor, index, "elements of BYTES must be strings in JSON")
        encoded = [element.encode(errors="surrogatepass") for element in elements]
        return b"".join(_LENGTH.pack(len(element)) + element for element in encoded)
    how, _ = _FORMATS.get(tensor.datatype, _NO_FORMAT)
    if not how:
        raise _at(
            tensor, index, f"datatype {tensor.datatype!r} has no JSON form; send it as binary data"
        )
    fits = {bool} if how == "?" else {int, float} if how in "efd" else {int}
    if not fits.issuperset(map(type, elements)):
        kinds = " or ".join(sorted(kind.__name__ for kind in fits))
        raise _at(tensor, index, f"elements of {tensor.datatype} must be {kinds}")
    try:
        return struct.pack(f"<{len(elements)}{how}", *elements)
    except (struct.error, OverflowError) as error:
        raise _at(tensor, index, f"{tensor.datatype} cannot hold an element: {error}") from None


def _flat(data: Sequence[Any], depth: int) -> Sequence[Any]:
    """Return the elements of nested lists, row-major; lists deeper than `depth` stay elements."""
    for _ in range(depth - 1):
        if not data or not all(isinstance(each, list) for each in data):
            break
        data = [element for row in data for element in row]
    return data


def _elements(contents: bytes, datatype: str, name: str) -> Sequence[Any]:
    if datatype == "BYTES":
        return _texts(contents, name)
    how, _ = _FORMATS.get(datatype, _NO_FORMAT)
    if not how:
        raise FailedPrecondition(
            f"output {name!r}: {datatype} has no JSON form; request it with binary_data: true",
            field="outputs",
        )
    return struct.unpack(f"<{len(contents) // struct.calcsize(how)}{how}", contents)


def _texts(contents: bytes, name: str) -> list[str]:
    found, position = [], 0
    try:
        while position < len(contents):
            start = position + _LENGTH.size
            position = start + _LENGTH.unpack_from(contents, position)[0]
            found.append(contents[start:position].decode())
    except (UnicodeDecodeError, struct.error):
        raise FailedPrecondition(
            f"output {name!r}: its bytes are not UTF-8; request it with binary_data: true",
            field="outputs",
        ) from None
    return found


def _raw(tensor: pb.ModelInferResponse.InferOutputTensor) -> bytes:
    """Return the raw contents of an output that a server sent as a list of elements."""
    if tensor.datatype == "BYTES":
        elements = tensor.contents.bytes_contents
        return b"".join(_LENGTH.pack(len(element)) + element for element in elements)
    how, field = _FORMATS.get(tensor.datatype, _NO_FORMAT)
    numbers = getattr(tensor.contents, field, ())
    return struct.pack(f"<{len(numbers)}{how or 'B'}", *numbers)


def _set_parameters(message: Any, given: Mapping[str, Any], without: str) -> None:
    for key, value in given.items():
        if key != without:
            set_parameter(message.parameters[key], value)


def set_parameter(parameter: pb.InferParameter, value: bool | float | str) -> None:
    """Set a parameter to a value of its type.

    Raises:
        InvalidArgument: An integer beyond 64 bits.
    """
    try:
        match value:
            case bool():
                parameter.bool_param = value
            case int() if value >= 2**63:
                parameter.uint64_param = value
            case int():
                parameter.int64_param = value
            case float():
                parameter.double_param = value
            case str():
                parameter.string_param = value
    except ValueError as error:
        raise InvalidArgument.at("parameters", f"integers have 64 bits: {error}") from None


def parameters(given: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    """Return the values of parameters; one without a value is left out."""
    chosen = {key: each.WhichOneof("parameter_choice") for key, each in given.items()}
    return {key: getattr(given[key], choice) for key, choice in chosen.items() if choice}

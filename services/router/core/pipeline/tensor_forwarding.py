"""Composes a stage's request from the answers of the stages before: bytes in, bytes out.

A tensor is described alike in a ModelInferRequest and in a ModelInferResponse, and raw contents are
the same bytes in both. So tensors are cut out of one message and put into another as they are; only
their names are read.
Source: Protocol Buffers documentation, "Encoding"; field numbers of grpc_service.proto.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from services.kit.errors import Internal, InvalidArgument
from services.kit.protobuf_wire import BYTES, fields, varint
from services.router.core.wire import enclosed

_NAME: Final = 1
_HEAD: Final = (1, 2, 3)  # model_name, model_version, id
_DESCRIBED: Final = 5
_WANTED: Final = 6  # of a request: outputs
_RAW_OUTPUT: Final = 6
_RAW_INPUT: Final = 7
_RAW_TAG: Final = bytes((_RAW_INPUT << 3 | BYTES,))


class Tensor(NamedTuple):
    """A tensor on the wire.

    Attributes:
        described: Serialized InferInputTensor, or InferOutputTensor.
        raw: Contents; None: they are in `described`.
    """

    described: bytes
    raw: memoryview | None


Tensors = Mapping[str, Tensor]


class Origin(NamedTuple):
    """Parts of a client's request that a pipeline keeps.

    Attributes:
        head: Fields of every stage's request: model, version, id.
        inputs: Input tensors.
        wanted: The requested outputs, for the last stage.
    """

    head: bytes
    inputs: Tensors
    wanted: bytes


def read_request(data: bytes) -> Origin:
    """Return the parts of a serialized ModelInferRequest that a pipeline keeps.

    Raises:
        InvalidArgument: The bytes are malformed.
    """
    head, wanted = [], []
    for number, start, end in _read(data):
        if number in _HEAD:
            head.append(enclosed(number, data[start:end]))
        elif number == _WANTED:
            wanted.append(enclosed(_WANTED, data[start:end]))
    return Origin(b"".join(head), _tensors(data, _RAW_INPUT), b"".join(wanted))


def read_answer(data: bytes) -> Tensors:
    """Return the tensors of a serialized ModelInferResponse.

    Raises:
        InvalidArgument: The bytes are malformed.
    """
    return _tensors(data, _RAW_OUTPUT)


def compose(origin: Origin, tensors: Tensors, takes: Iterable[str], *, last: bool) -> bytes:
    """Return a stage's request, a serialized ModelInferRequest.

    Args:
        origin: The client's request.
        tensors: The client's inputs, and the outputs of the stages before.
        takes: Names of the stage's inputs.
        last: Its answer goes to the client.

    Raises:
        Internal: An input is missing: the stages do not belong together.
        InvalidArgument: The client sent an input of a later stage not as raw contents.
    """
    described: list[bytes] = [origin.head]
    raw: list[bytes | memoryview] = []
    for name in takes:
        tensor = tensors.get(name)
        if tensor is None:
            raise Internal(f"the next stage takes {name!r}, which no stage before it returns")
        if tensor.raw is None:
            raise InvalidArgument(
                f"input {name!r}: a later stage of the pipeline takes it as well; send tensors in"
                " raw_input_contents",
                field="inputs",
            )
        described.append(enclosed(_DESCRIBED, tensor.described))
        raw += (_RAW_TAG, varint(len(tensor.raw)), tensor.raw)
    return b"".join((*described, origin.wanted if last else b"", *raw))


def _tensors(data: bytes, raw_field: int) -> dict[str, Tensor]:
    queue_view = memoryview(data)
    described: list[tuple[str, bytes]] = []
    raw: list[memoryview] = []
    for number, start, end in _read(data):
        if number == _DESCRIBED:
            body = data[start:end]
            described.append((_name(body), body))
        elif number == raw_field:
            raw.append(queue_view[start:end])
    if raw and len(raw) != len(described):
        raise InvalidArgument(f"{len(described)} tensors have {len(raw)} raw contents")
    return {
        name: Tensor(body, raw[at] if raw else None) for at, (name, body) in enumerate(described)
    }


def _name(described: bytes) -> str:
    name = ""
    for number, start, end in _read(described):
        if number == _NAME:
            name = described[start:end].decode(errors="replace")
    return name


def _read(data: bytes) -> list[tuple[int, int, int]]:
    """Return number, start and end of each field of bytes."""
    try:
        found = fields(data, 0, len(data))
        return [(number, start, end) for number, kind, start, end in found if kind == BYTES]
    except (ValueError, IndexError) as error:
        raise InvalidArgument("not a message of the inference protocol") from error

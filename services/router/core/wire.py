"""Reading a ModelInferRequest without decoding it, and adding to a ModelInferResponse.

Only what routing needs is read. Bytes that protobuf's own parser refuses at the top level, or in
what is read here, are refused; tensors are skipped over, the worker checks them.
Source: Protocol Buffers documentation, "Encoding".
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from services.kit.errors import InvalidArgument

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)

# InferParameter: wire type by field number, and which are integers.
_CHOICES = {1: _VARINT, 2: _VARINT, 3: _BYTES, 4: _FIXED64, 5: _VARINT}
_INTEGERS = (2, 5)

_DOUBLE = struct.Struct("<d")
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]

_MAX_FIELDS = 65_536  # bounds the time that one request can hold the event loop: about 30 ms
_MAX_GROUP_DEPTH = 100  # as protobuf's own parsers
_MAX_FIELD_NUMBER = 2**29 - 1


@dataclass(frozen=True, slots=True)
class Head:
    """What routing reads of a request.

    Attributes:
        model_name: As sent.
        model_version: As sent; "" where absent.
        id: The client's identifier of the request.
        timeout_s: The `timeout` parameter (on the wire: microseconds), or None.
        priority: The `priority` parameter: lower is sooner; 0: the default.
    """

    model_name: str
    model_version: str = ""
    id: str = ""
    timeout_s: float | None = None
    priority: int = 0

    def limit_s(self, remaining_s: float | None, default_s: float) -> float:
        """Return the time limit of the request, s.

        Args:
            remaining_s: Until the caller stops waiting; None: never.
            default_s: Limit of a request without one.
        """
        if remaining_s is None:
            return default_s if self.timeout_s is None else self.timeout_s
        return remaining_s if self.timeout_s is None else min(remaining_s, self.timeout_s)


def read_head(data: bytes) -> Head:
    """Read the head of a serialized inference.ModelInferRequest.

    Raises:
        InvalidArgument: The bytes are not such a message.
    """
    text = {1: "", 2: "", 3: ""}
    numbers = {"timeout": 0, "priority": 0}
    try:
        for number, kind, start, end in fields(data, 0, len(data)):
            if kind != _BYTES:
                continue
            if number in text:
                text[number] = data[start:end].decode()
            elif number == 4:
                key, parameter = _entry_of(data, start, end)
                if key in numbers:
                    numbers[key] = _integer(parameter)
    except (ValueError, IndexError) as error:
        raise InvalidArgument(
            "the request is not a valid serialized inference.ModelInferRequest",
            reason="MALFORMED_REQUEST",
        ) from error
    timeout_us, priority = numbers["timeout"], numbers["priority"]
    timeout_s = timeout_us / 1e6 if timeout_us > 0 else None
    return Head(text[1], text[2], text[3], timeout_s, max(priority, 0))


def _entry_of(data: bytes, start: int, end: int) -> tuple[str, bytes]:
    """Return key and value, a serialized InferParameter, of an entry of `parameters`."""
    key, parameter = "", b""
    for number, kind, first, last in fields(data, start, end):
        if (number, kind) == (1, _BYTES):
            key = data[first:last].decode()
        elif (number, kind) == (2, _BYTES):
            parameter += data[first:last]  # a submessage that occurs twice merges
    return key, parameter


def _integer(parameter: bytes) -> int:
    """Return the value of a serialized InferParameter; 0 where it is not an integer."""
    value = 0
    for number, kind, first, _ in fields(parameter, 0, len(parameter)):
        if _CHOICES.get(number) == kind:  # a oneof: the last choice is the value
            value = _read_varint(parameter, first)[0] if number in _INTEGERS else 0
            if number == 2 and value >= 2**63:
                value -= 2**64
    return value


def fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, wire type, start, end) of each field's value; groups are skipped whole."""
    groups: list[int] = []
    count = 0
    while position < end:
        count += 1
        tag, position = _read_varint(data, position)
        number, kind = tag >> 3, tag & 7
        if not 1 <= number <= _MAX_FIELD_NUMBER or count > _MAX_FIELDS:
            raise ValueError("field number")
        start = position
        if kind == _BYTES:
            size, start = _read_varint(data, position)
            position = start + size
        elif kind in (_GROUP, _END_GROUP):
            _nest(groups, number, kind)
        else:
            position = _after_scalar(data, position, kind)
        if position > end:
            raise ValueError("truncated")
        if not groups and kind != _END_GROUP:
            yield number, kind, start, position
    if groups:
        raise ValueError("a group without end")


def _after_scalar(data: bytes, position: int, kind: int) -> int:
    if kind == _VARINT:
        return _read_varint(data, position)[1]
    if kind == _FIXED64:
        return position + 8
    if kind == _FIXED32:
        return position + 4
    raise ValueError("wire type")


def _nest(groups: list[int], number: int, kind: int) -> None:
    """Enter or leave a group."""
    if kind == _GROUP:
        groups.append(number)
    if len(groups) > _MAX_GROUP_DEPTH:
        raise ValueError("groups too deep")
    if kind == _END_GROUP and (not groups or groups.pop() != number):
        raise ValueError("end of another group")


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return value (64 bits) and the position after it; IndexError where the bytes end."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ValueError("varint of more than 10 bytes")
    return value & (2**64 - 1), position + 1


# ---- response parameters -----------------------------------------------------------------------


def string_parameter(key: str, value: str) -> bytes:
    """Return a serialized `parameters` entry of a ModelInferResponse.

    Serialized messages merge by concatenation: appended to a response, the entry is added to its
    map and replaces one of the same key.
    """
    text = value.encode()
    return _entry(key.encode(), b"\x1a" + varint(len(text)) + text)


def double_parameter(key: str, value: float) -> bytes:
    """Return a serialized `parameters` entry with a double; see `string_parameter`."""
    return _before_double(key) + _DOUBLE.pack(value)


def integer_parameter(key: str, value: int) -> bytes:
    """Return a serialized `parameters` entry with an int64 >= 0; see `string_parameter`."""
    return _entry(key.encode(), b"\x10" + varint(value))


def bool_parameter(key: str, *, value: bool) -> bytes:
    """Return a serialized `parameters` entry with a bool; see `string_parameter`."""
    return _entry(key.encode(), b"\x08\x01" if value else b"\x08\x00")


def enclosed(field: int, *pieces: bytes) -> bytes:
    """Return a message with one embedded message, given in pieces, as `field` (1..15)."""
    return b"".join((bytes((field << 3 | _BYTES,)), varint(sum(map(len, pieces))), *pieces))


@lru_cache(maxsize=64)
def _before_double(key: str) -> bytes:
    """Return an entry without its last 8 bytes: the value, whose size never changes."""
    return _entry(key.encode(), b"\x21" + bytes(8))[:-8]


def _entry(key: bytes, parameter: bytes) -> bytes:
    entry = b"\x0a%b%b\x12%b%b" % (varint(len(key)), key, varint(len(parameter)), parameter)
    return b"\x22" + varint(len(entry)) + entry


def varint(value: int) -> bytes:
    """Return a number >= 0 as protobuf writes it."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

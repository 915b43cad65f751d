"""Serialized protobuf messages, read field by field without decoding or copying what they hold.

Bytes that protobuf's own parser refuses at the level that is read are refused here, too.
Source: Protocol Buffers documentation, "Encoding".
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, TypeAlias

Bytes: TypeAlias = bytes | bytearray | memoryview

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)
"""Wire types."""

MAX_FIELDS: Final = 16_384
"""Fields of a message, or of one in it that is read: they can hold the loop for about 10 ms."""
_MAX_GROUP_DEPTH: Final = 100  # as protobuf's own parsers
_MAX_FIELD_NUMBER: Final = 2**29 - 1
_ONE_BYTE: Final = [bytes((value,)) for value in range(0x80)]


def fields(  # noqa: C901 - one branch per wire type
    data: Bytes, position: int, end: int, max_fields: int = MAX_FIELDS
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, wire type, start, end) of each field's value; groups are skipped whole."""
    groups: list[int] = []
    count = 0
    while position < end:
        count += 1
        tag, position = data[position], position + 1
        if tag >= 0x80:
            tag, position = read_varint(data, position - 1)
        number, kind = tag >> 3, tag & 7
        if not 1 <= number <= _MAX_FIELD_NUMBER or count > max_fields:
            raise ValueError("field number")
        start = position
        if kind == BYTES:
            size, start = data[position], position + 1
            if size >= 0x80:
                if data[start] < 0x80:  # the usual case
                    size, start = size & 0x7F | data[start] << 7, start + 1
                else:
                    size, start = read_varint(data, position)
            position = start + size
        elif kind in (GROUP, END_GROUP):
            _nest(groups, number, kind)
        else:
            position = _after_scalar(data, position, kind)
        if position > end:
            raise ValueError("truncated")
        if not groups and kind != END_GROUP:
            yield number, kind, start, position
    if groups:
        raise ValueError("a group without end")


def _after_scalar(data: Bytes, position: int, kind: int) -> int:
    if kind == VARINT:
        return read_varint(data, position)[1]
    if kind == FIXED64:
        return position + 8
    if kind == FIXED32:
        return position + 4
    raise ValueError("wire type")


def _nest(groups: list[int], number: int, kind: int) -> None:
    """Enter or leave a group."""
    if kind == GROUP:
        groups.append(number)
    if len(groups) > _MAX_GROUP_DEPTH:
        raise ValueError("groups too deep")
    if kind == END_GROUP and (not groups or groups.pop() != number):
        raise ValueError("end of another group")


def read_varint(data: Bytes, position: int) -> tuple[int, int]:
    """Return a value (64 bits) and the position after it; IndexError where the bytes end."""
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


size_varint: Final = lru_cache(maxsize=4096)(varint)
"""`varint` of sizes, of which few differ among the messages of a client."""


def taken_out(message: memoryview, number: int) -> tuple[bytes, list[memoryview]]:
    """Return a message without one field, and that field's value, which is not copied.

    Args:
        message: Serialized.
        number: Of a field of bytes or messages.

    Raises:
        ValueError: It is not a message (also IndexError).
    """
    kept, found, begin, last = list[memoryview](), list[memoryview](), 0, 0
    for field, kind, start, end in fields(message, 0, len(message)):
        if field == number and kind == BYTES:
            found.append(message[start:end])
            kept.append(message[begin:last])
            begin = end
        last = end
    return b"".join((*kept, message[begin:])), found

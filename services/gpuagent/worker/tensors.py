"""Tensors as the Open Inference Protocol carries them: names of datatypes, raw bytes.

Raw BYTES elements are a 4-byte little-endian length and the bytes, one after another, row-major.
Every other datatype is its elements, little-endian, row-major.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from services.kit.errors import InvalidArgument

Array: TypeAlias = NDArray[Any]

BYTES: Final = "BYTES"


class Datatype(NamedTuple):
    """A datatype. Attributes: numpy, onnx (its name there), contents (its field; "": none)."""

    numpy: np.dtype[Any]
    onnx: str
    contents: str = ""


DATATYPES: Final = {
    "BOOL": Datatype(np.dtype("?"), "tensor(bool)", "bool_contents"),
    "UINT8": Datatype(np.dtype("u1"), "tensor(uint8)", "uint_contents"),
    "UINT16": Datatype(np.dtype("<u2"), "tensor(uint16)", "uint_contents"),
    "UINT32": Datatype(np.dtype("<u4"), "tensor(uint32)", "uint_contents"),
    "UINT64": Datatype(np.dtype("<u8"), "tensor(uint64)", "uint64_contents"),
    "INT8": Datatype(np.dtype("i1"), "tensor(int8)", "int_contents"),
    "INT16": Datatype(np.dtype("<i2"), "tensor(int16)", "int_contents"),
    "INT32": Datatype(np.dtype("<i4"), "tensor(int32)", "int_contents"),
    "INT64": Datatype(np.dtype("<i8"), "tensor(int64)", "int64_contents"),
    "FP16": Datatype(np.dtype("<f2"), "tensor(float16)"),
    "FP32": Datatype(np.dtype("<f4"), "tensor(float)", "fp32_contents"),
    "FP64": Datatype(np.dtype("<f8"), "tensor(double)", "fp64_contents"),
    BYTES: Datatype(np.dtype(object), "tensor(string)", "bytes_contents"),
}
DTYPES: Final = {name: each.numpy for name, each in DATATYPES.items() if name != BYTES}

_LENGTH = struct.Struct("<I")


def blank(datatype: str, shape: Sequence[int]) -> Array:
    """Return an array of zeros, or of empty texts: zeros take no memory before they are read."""
    if datatype == BYTES:
        return np.full(shape, "", dtype=object)
    return np.zeros(shape, DTYPES[datatype])


def decode(data: bytes | memoryview, datatype: str, shape: Sequence[int], *, field: str) -> Array:
    """Return the array of a raw tensor: a view of it, at whatever address it lies, but of BYTES.

    Args:
        data: The raw bytes.
        datatype: A datatype of the protocol, for example "FP32".
        shape: Its shape, all sizes >= 0.
        field: Path of `data`, for errors.

    Raises:
        InvalidArgument: The bytes are not what datatype and shape say.
    """
    if datatype == BYTES:
        return strings(_split(data, math.prod(shape), field), shape, field=field)
    dtype = DTYPES[datatype]
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise InvalidArgument.at(
            field, f"{datatype} of shape {list(shape)} takes {expected} bytes, got {len(data)}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def from_elements(
    elements: Sequence[Any], datatype: str, shape: Sequence[int], *, field: str
) -> Array:
    """Return the array of a tensor given as a list of elements.

    Raises:
        InvalidArgument: Their number is not the shape's, or one does not fit the datatype.
    """
    if datatype == BYTES:
        return strings(elements, shape, field=field)
    _check_count(len(elements), shape, field)
    try:
        return np.array(elements, DTYPES[datatype]).reshape(shape)
    except OverflowError as error:
        raise InvalidArgument.at(field, f"{datatype} cannot hold it: {error}") from None


def strings(elements: Sequence[bytes], shape: Sequence[int], *, field: str) -> Array:
    """Return UTF-8 elements as an array of str, which is what ONNX's string tensors hold.

    Raises:
        InvalidArgument: Their number is not the shape's, or one is not UTF-8.
    """
    _check_count(len(elements), shape, field)
    array = np.empty(len(elements), dtype=object)
    try:
        array[:] = [element.decode() for element in elements]
    except UnicodeDecodeError as error:
        raise InvalidArgument.at(field, f"BYTES must be UTF-8 ({error.reason})") from None
    return array.reshape(shape)


def encode(array: Array, datatype: str) -> bytes:
    """Return the raw bytes of an array."""
    if datatype != BYTES:
        return array.astype(DTYPES[datatype], copy=False).tobytes()
    elements = (
        value if isinstance(value, bytes) else str(value).encode() for value in array.ravel()
    )
    return b"".join(_LENGTH.pack(len(element)) + element for element in elements)


def _split(data: bytes | memoryview, count: int, field: str) -> list[bytes]:
    elements: list[bytes] = []
    at = 0
    while at < len(data):
        start = at + _LENGTH.size
        end = start + (_LENGTH.unpack_from(data, at)[0] if start <= len(data) else 0)
        if start > len(data) or end > len(data):
            raise InvalidArgument.at(field, f"element {len(elements)} of BYTES is cut short")
        elements.append(bytes(data[start:end]))
        at = end
        if len(elements) > count:
            break
    return elements


def _check_count(count: int, shape: Sequence[int], field: str) -> None:
    expected = math.prod(shape)
    if count != expected:
        raise InvalidArgument.at(field, f"shape {list(shape)} has {expected} elements, got {count}")

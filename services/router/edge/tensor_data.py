"""The `data` of tensors in JSON: taken out of a document, and packed piece by piece.

A list of numbers as Python objects takes 20 times its text, and reading it holds the interpreter
for as long as it lasts. Here no list is longer than a piece, and nesting is compared as text.
"""

import math
import re
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from pydantic_core import from_json, to_json

from services.kit.errors import InvalidArgument
from services.kit.json_bounds import STRINGS

LENGTH: Final = struct.Struct("<I")
"""Before each element of BYTES."""

FORMATS: Final = {
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

_SPACE: Final = b" \t\r\n"
_INTEGER: Final = b"-0123456789" + _SPACE
_ALPHABETS: Final = {"?": (b"truefals" + _SPACE, "bool")} | dict.fromkeys(
    "efd", (_INTEGER + b".eE+", "float or int")
)
_INTEGERS: Final = (_INTEGER, "int")
_PIECE: Final = 2**16
_MAX_LISTS: Final = 4096

_DATA: Final = re.compile(
    rb'"data"(?<!\\"data")\s*+:\s*+\[(?:[^"{}]++|' + STRINGS.pattern + rb"(?!\s*+:))*+", re.DOTALL
)
"""The member `data` of an object, as far as no object and no other member begins."""


def taken_out(document: bytes | bytearray) -> tuple[bytes | bytearray, list[bytes | bytearray]]:
    """Return a document with lists named `data` replaced by [their place], and those lists."""
    kept: list[bytes | bytearray] = []
    lists: list[bytes | bytearray] = []
    end = 0
    for found in islice(_DATA.finditer(document), _MAX_LISTS):
        close = document.rfind(b"]", found.start(), found.end()) + 1
        if not close or document[close : found.end()].strip(_SPACE) not in (b"", b","):
            continue  # an object is among the elements, or the document ends here
        first = document.index(b"[", found.start())
        kept += (document[end:first], b"[%d]" % len(lists))
        lists.append(document[first:close])
        end = close
    if not lists:
        return document, []
    kept.append(document[end:])
    return b"".join(kept), lists


def pack(
    out: bytearray, text: bytes | bytearray, datatype: str, shape: Sequence[int], expected: int
) -> None:
    """Append the elements of a JSON list, flat or nested as the shape, as raw contents.

    Args:
        out: Raw contents.
        text: The list.
        datatype: Of its elements.
        shape: Of the tensor.
        expected: Number of its elements.

    Raises:
        InvalidArgument: They are not what datatype and shape say.
    """
    if datatype == "BYTES":
        _pack_texts(out, text, shape, expected)
        return
    how, _ = FORMATS.get(datatype, ("", ""))
    if not how:
        raise InvalidArgument(f"datatype {datatype!r} has no JSON form; send it as binary data")
    alphabet, kinds = _ALPHABETS.get(how, _INTEGERS)
    skeleton = text.translate(None, alphabet)
    if skeleton.translate(None, b"[],"):
        raise InvalidArgument(f"elements of {datatype} must be {kinds}")
    empty = len(text.translate(None, _SPACE)) == len(skeleton)
    _check_nesting(skeleton, shape, expected, empty=empty)
    try:
        count = sum(_pack_piece(out, each, how) for each in _pieces(text)) if expected else 0
    except (struct.error, OverflowError) as error:
        raise InvalidArgument(f"{datatype} cannot hold an element: {error}") from None
    except ValueError as error:
        raise InvalidArgument(f"data is not a JSON list of numbers: {error}") from None
    if count != expected:
        raise _miscounted(shape, expected, count)


def written(contents: bytes, how: str) -> Iterator[bytes]:
    """Yield the elements of raw contents as a JSON list, in pieces.

    Args:
        contents: The elements.
        how: Their format of `struct`.
    """
    item = struct.calcsize(how)
    step = _PIECE // item * item
    whole = len(contents) // item * item
    yield b"["
    for start in range(0, whole, step):
        stop = min(start + step, whole)
        piece = struct.unpack(f"<{(stop - start) // item}{how}", contents[start:stop])
        yield b","[: start > 0]
        yield to_json(piece, inf_nan_mode="null")[1:-1]
    yield b"]"


def _pieces(text: bytes | bytearray) -> Iterator[bytes]:
    """Yield a list's text without brackets, cut at commas; some elements each."""
    start = 0
    while start >= 0:
        cut = text.find(b",", start + _PIECE)
        piece = text[start : cut if cut >= 0 else len(text)]
        yield b"".join((b"[", piece.translate(None, b"[]"), b"]"))
        start = cut + 1 if cut >= 0 else -1


def _pack_piece(out: bytearray, text: bytes, how: str) -> int:
    """Append some elements; return their number."""
    elements = from_json(text)
    out += struct.pack(f"<{len(elements)}{how}", *elements)
    if not math.isfinite(sum(elements)) and any(map(math.isinf, elements)):
        raise OverflowError("a number beyond the range of a double")
    return len(elements)


def _pack_texts(
    out: bytearray, text: bytes | bytearray, shape: Sequence[int], expected: int
) -> None:
    skeleton = STRINGS.sub(b'"', text).translate(None, _SPACE)
    bare = skeleton.translate(None, b'"')
    if bare.translate(None, b"[],"):
        raise InvalidArgument("elements of BYTES must be strings in JSON")
    _check_nesting(bare, shape, expected, empty=len(bare) == len(skeleton))
    if not expected:
        return
    try:
        elements = from_json(text)
    except ValueError as error:
        raise InvalidArgument(f"data is not a JSON list of strings: {error}") from None
    for _ in range(_depth(bare) - 1):
        elements = [element for row in elements for element in row]
    if len(elements) != expected:
        raise _miscounted(shape, expected, len(elements))
    for element in elements:
        encoded = element.encode(errors="surrogatepass")
        out += LENGTH.pack(len(encoded))
        out += encoded


def _depth(skeleton: bytes | bytearray) -> int:
    return len(skeleton) - len(skeleton.lstrip(b"["))


def _check_nesting(
    skeleton: bytes | bytearray, shape: Sequence[int], expected: int, *, empty: bool
) -> None:
    """Compare a list's brackets and commas with a shape's.

    Args:
        skeleton: The list without its elements.
        shape: The sizes.
        expected: Their product.
        empty: The list has no elements.

    Raises:
        InvalidArgument: It has another number of elements, or they are nested otherwise.
    """
    count = 0 if empty else skeleton.count(b",") + 1
    if count != expected:
        raise _miscounted(shape, expected, count)
    depth = _depth(skeleton)
    if skeleton == b"[%b]" % (b"," * (expected - 1)):
        return  # flat
    sizes = [*shape[: depth - 1], math.prod(shape[depth - 1 :])] if depth <= len(shape) else []
    row = b""
    for size in reversed(sizes):
        if (len(row) + 1) * size > len(skeleton):
            break
        row = b"[%b]" % b",".join([row] * size)
    if not sizes or row != skeleton:
        raise InvalidArgument(
            f"data must be a flat list or nested as shape {list(shape)}, every list of a level"
            " as long as the others"
        )


def _miscounted(shape: Sequence[int], expected: int, count: int) -> InvalidArgument:
    return InvalidArgument(f"shape {list(shape)} has {expected} elements, got {count}")

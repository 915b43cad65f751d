"""Bounds of a JSON document, checked before it is read.

A value takes up to 3 us and 600 bytes, text next to nothing
(docs/decisions/0037-cost-of-a-document.md).
"""

import re
from typing import Any, Final

from pydantic_core import from_json

from services.kit.errors import InvalidArgument

MAX_JSON_BYTES: Final = 8 * 2**20
"""Largest JSON document."""
MAX_STRINGS: Final = 65_536
"""Strings of a document, names of members included."""
MAX_VALUES: Final = 8192
"""Lists, objects and their elements in a document, but those of tensors' data."""
MAX_CONTAINERS: Final = 65_536
"""Lists and objects of any document: each takes 20 times what a number does."""
MAX_ANSWER_VALUES: Final = 2**21
"""Values of a server's answer: 1,365 embeddings of 1,536 numbers."""

STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""A JSON string."""


def check_size(document: bytes | bytearray, most_bytes: int = MAX_JSON_BYTES) -> None:
    """Refuse a document that has too many bytes or strings.

    Raises:
        InvalidArgument: Says how many it has, and how many it may have.
    """
    if len(document) > most_bytes:
        raise _too_large(f"{len(document)} bytes, and {most_bytes}")
    strings = _strings(document)
    if strings > MAX_STRINGS:
        raise _too_large(f"{strings} strings, and {MAX_STRINGS}")


def check_values(
    document: bytes | bytearray, most: int = MAX_VALUES, which: str = "values outside tensors' data"
) -> None:
    """Refuse a document that has too many values.

    Raises:
        InvalidArgument: Says how many it has, and how many it may have.
    """
    containers, values = _values(document)
    if (values > most or containers > MAX_CONTAINERS) and _strings(document) <= 2 * MAX_VALUES:
        # Brackets and commas in strings are no values.
        containers, values = _values(STRINGS.sub(b"", document))
    if values > most:
        raise _too_large(f"{values} {which}, and {most}")
    if containers > MAX_CONTAINERS:
        raise _too_large(f"{containers} lists and objects, and {MAX_CONTAINERS}")


def parsed_answer(document: bytes | bytearray, most: int = MAX_ANSWER_VALUES) -> Any:
    """Return what a server has answered.

    Raises:
        ValueError: It is not JSON, or has more in it than is read.
    """
    try:
        check_size(document, len(document))
        check_values(document, most, "values")
    except InvalidArgument as error:
        raise ValueError(error.message) from None
    return from_json(document)


def _strings(document: bytes | bytearray) -> int:
    """Count strings by their quotes; one that ends with a backslash counts as half of one."""
    return (document.count(b'"') - document.count(b'\\"')) // 2


def _values(document: bytes | bytearray) -> tuple[int, int]:
    """Return how many lists and objects there are, and how many of them with their elements."""
    containers = document.count(b"{") + document.count(b"[")
    return containers, containers + document.count(b",")


def _too_large(finding: str) -> InvalidArgument:
    return InvalidArgument(
        f"the JSON document has {finding} at most are read; send large tensors as binary data",
        reason="JSON_TOO_LARGE",
    )

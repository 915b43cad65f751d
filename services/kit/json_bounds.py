"""Bounds of a JSON document, checked before it is read.

A value takes up to 3 us and 600 bytes, text next to nothing
(docs/decisions/0037-cost-of-a-document.md).
"""

import re
from typing import Final

from services.kit.errors import InvalidArgument

MAX_JSON_BYTES: Final = 8 * 2**20
"""Largest JSON document."""
MAX_STRINGS: Final = 65_536
"""Strings of a document, names of members included."""
MAX_VALUES: Final = 8192
"""Lists, objects and their elements in a document, but those of tensors' data."""

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
    values = _values(document)
    if values > most and _strings(document) <= 2 * MAX_VALUES:
        values = _values(STRINGS.sub(b"", document))  # brackets and commas in strings are no values
    if values > most:
        raise _too_large(f"{values} {which}, and {most}")


def _strings(document: bytes | bytearray) -> int:
    """Count strings by their quotes; one that ends with a backslash counts as half of one."""
    return (document.count(b'"') - document.count(b'\\"')) // 2


def _values(document: bytes | bytearray) -> int:
    return sum(map(document.count, (b"{", b"[", b",")))


def _too_large(finding: str) -> InvalidArgument:
    return InvalidArgument(
        f"the JSON document has {finding} at most are read; send large tensors as binary data",
        reason="JSON_TOO_LARGE",
    )

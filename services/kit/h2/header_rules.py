"""Rules for the headers of a request. Source: RFC 9113, 8.1 to 8.3."""

import string
from collections.abc import Mapping, Sequence
from typing import Final

NO_PSEUDO_FIELDS: Final = "no pseudo-header fields"
"""The fault of trailers, which are none of a request's headers."""

_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_OF_NAMES: Final = f"!#$%&'*+-.^_`|~:{string.digits}{string.ascii_lowercase}".encode()
_LONGEST_LENGTH: Final = 18


def fault_of(fields: Sequence[tuple[bytes, bytes]], by_name: Mapping[bytes, bytes]) -> str:
    """Return why fields are not the headers of a request; "" if they are.

    Args:
        fields: In their order.
        by_name: The same by name, the last of equal names.
    """
    names = [name for name, _ in fields]
    joined, method = b"".join(names), by_name.get(b":method")
    values = b"".join([value for _, value in fields])
    pseudo, length = joined.count(b":"), by_name.get(b"content-length", b"0")
    rules = (
        (
            joined.translate(None, _OF_NAMES) or b"" in names,
            "a header with a name that HTTP/2 lacks",
        ),
        (b"\r" in values or b"\n" in values or b"\0" in values, "CR, LF or NUL in a header"),
        (not pseudo, NO_PSEUDO_FIELDS),
        (
            len(_PSEUDO.intersection(names[:pseudo])) != pseudo,
            "pseudo-header fields that are unknown, doubled, or not the first",
        ),
        (not _OF_CONNECTIONS.isdisjoint(names), "a header of HTTP/1 connections"),
        (by_name.get(b"te", b"trailers") != b"trailers", "te: only trailers"),
        (
            not length.isdigit()
            or len(length) > _LONGEST_LENGTH
            or names.count(b"content-length") > 1,
            "a content-length that is no number",
        ),
        (
            method != b"CONNECT"
            and not (method and by_name.get(b":scheme") and by_name.get(b":path")),
            "no method, scheme or path",
        ),
    )
    return next((fault for broken, fault in rules if broken), "")

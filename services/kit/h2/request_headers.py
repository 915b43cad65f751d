"""Headers of a request: what they say of a call, or why they are none of gRPC.

Source: PROTOCOL-HTTP2.md, "Requests".
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from services.kit.h2.call import Handler, RequestHead, decoded
from services.kit.h2.connection import HEADER_LIST_BYTES
from services.kit.h2.header_rules import fault_of

CONTENT_TYPE: Final = "application/grpc"

_GRPC: Final = re.compile(rb"application/grpc(?:$|[+;])")
_HEAD_UNIT_BYTES: Final = 1024
_TIMEOUT: Final = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS_S: Final = {b"n": 1e-9, b"u": 1e-6, b"m": 1e-3, b"S": 1.0, b"M": 60.0, b"H": 3600.0}
_OWN_FIELDS: Final = frozenset({b"te", b"content-length"})
_EXHAUSTED, _INTERNAL = 8, 13


def read_request_head(
    fields: list[tuple[bytes, bytes]], handler_of: Callable[[str], Handler], *, cut: bool
) -> RequestHead:
    """Return what the headers of a call say.

    Args:
        fields: The headers.
        handler_of: Returns the handler of a method; None: there is none.
        cut: Whether there were more than are read.
    """
    by_name = dict(fields)
    fault = fault_of(fields, by_name)
    if fault and not cut:
        return RequestHead("", fault=fault)
    path = by_name.get(b":path", b"").decode("latin-1")
    length = int(by_name[b"content-length"]) if b"content-length" in by_name and not cut else None
    refusal = _refusal(by_name, cut=cut)
    if refusal is not None:
        return RequestHead(path, refusal=refusal, length=length)
    if cut:
        reason = f"metadata of more than {HEADER_LIST_BYTES} bytes"
        return RequestHead(path, error=(_EXHAUSTED, reason))
    timeout_s, encoding = None, "identity"
    metadata = list[tuple[str, str | bytes]]()
    accepted: tuple[str, ...] = ()
    try:
        for key, value in fields:
            if key.startswith(b":") or key in _OWN_FIELDS or key == b"content-type":
                continue
            if key == b"grpc-timeout":
                timeout_s = _timeout_s(value)
            elif key == b"grpc-encoding":
                encoding = value.decode("ascii")
            elif key == b"grpc-accept-encoding":
                accepted = tuple(each.strip() for each in value.decode("ascii").split(","))
            else:
                metadata.append(decoded(key, value))
    except ValueError as error:  # also binascii.Error, UnicodeDecodeError
        return RequestHead(path, error=(_INTERNAL, str(error) or "malformed metadata"))
    handler = handler_of(path)
    return RequestHead(
        path,
        tuple(metadata),
        timeout_s,
        handler,
        encoding,
        accepted,
        length=length,
        size=1 + sum([len(value) for _, value in fields]) // _HEAD_UNIT_BYTES,
    )


def _refusal(fields: Mapping[bytes, bytes], *, cut: bool) -> tuple[int, str] | None:
    """Return why this is no call of gRPC, as an answer of HTTP; None: it is one."""
    if fields.get(b":method") != b"POST":
        return 405, "this port speaks gRPC: POST"
    if _GRPC.match(fields.get(b"content-type", b"")) is None:
        if cut:
            return 431, f"a header list of more than {HEADER_LIST_BYTES} bytes"
        return 415, f"this port speaks gRPC: content-type {CONTENT_TYPE}"
    return None


def _timeout_s(value: bytes) -> float:
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise ValueError(f"grpc-timeout: {value!r} must be up to 8 digits and one of H M S m u n")
    return int(found[1]) * _UNITS_S[found[2]]

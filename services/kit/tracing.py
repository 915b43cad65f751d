"""W3C trace context: taken from callers, bound to logs, passed on.

Source: W3C Recommendation "Trace Context", section 3.2 (traceparent).
"""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

traceparent: ContextVar[str] = ContextVar("traceparent", default="")


def accept(header: str) -> str:
    """Return a child of the caller's trace, or "" where the header is not a valid traceparent."""
    if not _TRACEPARENT.fullmatch(header):
        return ""
    return f"{header[:36]}{secrets.token_hex(8)}{header[52:]}"


def trace_id(header: str) -> str:
    """Return the trace id of a valid traceparent, for logs."""
    return header[3:35]

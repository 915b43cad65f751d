"""W3C trace context: accepted from callers, bound to logs, propagated; spans if recorded.

Without a recorder (`services.kit.telemetry.otel_spans`) a call costs two lookups, and the caller's
header is propagated unchanged: the next recorded span becomes its child.
Source: W3C Recommendation "Trace Context", sections 3.2 (traceparent) and 3.3 (tracestate).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from services.kit.errors import ServiceError

if TYPE_CHECKING:
    from services.kit.telemetry.otel_spans import Attributes, OtelRecorder, OtelSpan

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_STATE_CHARS = 512  # what the recommendation requires to be propagated

Metadata = Iterable[tuple[str, str | bytes]]
traceparent: ContextVar[str] = ContextVar("traceparent", default="")
tracestate: ContextVar[str] = ContextVar("tracestate", default="")
current: ContextVar[OtelSpan | None] = ContextVar("span", default=None)

_recorders: list[OtelRecorder] = []  # of this process, newest last


@contextmanager
def recorded(recorder: OtelRecorder) -> Iterator[None]:
    """Record the process's spans while the block runs."""
    _recorders.append(recorder)
    try:
        yield
    finally:
        _recorders.remove(recorder)


def recording() -> bool:
    """Return whether spans are recorded."""
    return bool(_recorders)


def accept(header: str) -> str:
    """Return the caller's header, or "" if it is not a valid traceparent."""
    return header if _TRACEPARENT.fullmatch(header) else ""


def trace_id(header: str) -> str:
    """Return the trace id of a valid traceparent, for logs."""
    return header[3:35]


def enter(method: str, metadata: Metadata, *, may_begin: bool) -> OtelSpan | None:
    """Continue the trace of a call that is being served.

    Args:
        method: "/package.Service/Method".
        metadata: Metadata of the call.
        may_begin: Whether a call without a trace starts one if spans are recorded.

    Returns:
        The span of the call, to be ended; None: not recorded.
    """
    header, states = "", []
    for key, value in metadata:
        if key == "traceparent":
            header = accept(str(value))
        elif key == "tracestate":
            states.append(str(value))
    state = ",".join(states) if header else ""
    if len(state) > _MAX_STATE_CHARS:
        state = ""
    if not _recorders or not (header or may_begin):
        traceparent.set(header)
        tracestate.set(state)
        return None
    return _bind(_recorders[-1].begin(method[1:], header, state, serving=True))


@contextmanager
def part(name: str) -> Iterator[None]:
    """Record a block as a child span; its calls become children of that.

    Use it in a task of its own: the trace that it binds stays bound.
    """
    if not _recorders:
        yield
        return
    span = _bind(_recorders[-1].begin(name, traceparent.get(), tracestate.get(), serving=False))
    status = "OK"
    try:
        yield
    except BaseException as error:
        status = "INTERNAL" if isinstance(error, Exception) else "CANCELLED"
        status = error.status if isinstance(error, ServiceError) else status
        raise
    finally:
        span.end(status)


def begin_for(name: str, parent: str, state: str) -> OtelSpan | None:
    """Begin a span for a caller's trace without binding it; None: not recorded."""
    header = accept(parent) if _recorders else ""
    if not header:
        return None
    return _recorders[-1].begin(name, header, state, serving=True)


def annotate(attributes: Attributes) -> None:
    """Add attributes to the current span; check `recording` before computing them."""
    span = current.get()
    if span is not None:
        span.set(attributes)


def _bind(span: OtelSpan) -> OtelSpan:
    traceparent.set(span.traceparent)
    tracestate.set(span.tracestate)
    current.set(span)
    return span

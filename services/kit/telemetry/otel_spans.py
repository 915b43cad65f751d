"""OpenTelemetry's spans. Imported only if spans are recorded.

The instrumentation package of gRPC replaces grpc.aio's streams by slower ones; this is sufficient.
Names as in OpenTelemetry's semantic conventions for RPC.
"""

import time
from collections.abc import Mapping
from typing import Final

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Attributes = Mapping[str, str | float]

_WIRE: Final = TraceContextTextMapPropagator()

_FAULTS: Final = frozenset(
    {"DATA_LOSS", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNIMPLEMENTED", "UNKNOWN"}
)
"""Statuses that are server errors by the semantic conventions."""


class OtelSpan:
    """A span that is being recorded.

    Attributes:
        traceparent: Header for outgoing calls.
        tracestate: Header that belongs to it.
    """

    def __init__(self, tracer: trace.Tracer, span: trace.Span, started_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._started_ns = started_ns
        self._context = trace.set_span_in_context(span, context.Context())
        headers: dict[str, str] = {}
        _WIRE.inject(headers, self._context)
        self.traceparent = headers.get("traceparent", "")
        self.tracestate = headers.get("tracestate", "")

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        self._span.set_attributes(attributes)

    def part(self, name: str, started_s: float, duration_s: float) -> None:
        """Add a child span that has ended.

        Args:
            name: Name of the child.
            started_s: Start after that of the span, s.
            duration_s: Duration, s.
        """
        started_ns = self._started_ns + int(started_s * 1e9)
        part = self._tracer.start_span(name, self._context, start_time=started_ns)
        part.end(started_ns + int(duration_s * 1e9))

    def end(self, status: str) -> None:
        """End the span with a gRPC status word; a second end has no effect."""
        if not self._span.is_recording():
            return
        self._span.set_attribute("rpc.response.status_code", status)
        if status in _FAULTS:
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()


class OtelRecorder:
    """Records with a tracer."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def begin(self, name: str, parent: str, state: str, *, serving: bool) -> OtelSpan:
        """Begin a span.

        Args:
            name: Name of the span.
            parent: A traceparent; empty: a new trace.
            state: Its tracestate.
            serving: Whether it serves a caller in another process.
        """
        headers = {"traceparent": parent, "tracestate": state}
        started_ns = time.time_ns()
        span = self._tracer.start_span(
            name,
            _WIRE.extract(headers, context.Context()),
            trace.SpanKind.SERVER if serving else trace.SpanKind.INTERNAL,
            {"rpc.system.name": "grpc", "rpc.method": name} if serving else None,
            start_time=started_ns,
        )
        return OtelSpan(self._tracer, span, started_ns)

"""What became of each piece of work, as spans of its caller's trace."""

from __future__ import annotations

from collections.abc import Iterable

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from services.gpuagent.worker.session import Answer
from services.kit.telemetry import tracing


class WorkSpans:
    """The spans of one stream's work; nothing where none are recorded or the work has no trace."""

    def __init__(self) -> None:
        self._open: dict[int, tracing.Span] = {}

    def begin(self, work: pb.Work) -> None:
        """Begin the span of a piece of work that has come."""
        if not tracing.recording():
            return
        span = tracing.begin_for("worker.execute", work.traceparent, work.tracestate)
        if span is not None:
            self._open[work.id] = span

    def end(self, answers: Iterable[Answer]) -> None:
        """End the spans of work that has its last answer."""
        if not self._open:
            return
        for answer in answers:
            span = None if answer.more else self._open.pop(answer.id, None)
            if span is not None:
                _end(span, answer)

    def close(self) -> None:
        """End what was never answered: the stream is gone."""
        for span in self._open.values():
            span.end("CANCELLED")
        self._open.clear()


def _end(span: tracing.Span, answer: Answer) -> None:
    cost = answer.cost
    if cost is not None:
        span.part("queue", 0.0, cost.queue_s)
        span.part("compute", cost.queue_s, cost.compute_s)
        span.set(
            {
                "cinquefoil.energy_j": cost.energy_j,
                "cinquefoil.energy_method": cost.method,
                "cinquefoil.batch_size": cost.batch_size,
            }
        )
    span.end("OK" if answer.error is None else answer.error.status)

"""Spans as a collector gets them: the right parents, times and states."""

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from services.kit.errors import Unavailable
from services.kit.telemetry import export, tracing
from services.kit.telemetry.export import exported
from services.kit.telemetry.otel_spans import OtelRecorder

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADER = f"00-{TRACE}-00f067aa0ba902b7-01"


def recorder(sampler: Sampler | None = None) -> tuple[OtelRecorder, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OtelRecorder(provider.get_tracer("test")), exporter


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    made, exporter = recorder()
    with tracing.recorded(made):
        yield exporter


def parent_id(span: ReadableSpan) -> str:
    return "" if span.parent is None else f"{span.parent.span_id:016x}"


def test_a_served_call_is_a_child_of_its_caller_and_the_parent_of_what_it_calls(
    spans: InMemorySpanExporter,
) -> None:
    span = tracing.enter("/p.S/M", [("traceparent", HEADER), ("tracestate", "a=1")], may_begin=True)
    assert span is not None
    sent = tracing.traceparent.get()
    with tracing.part("part"):
        tracing.annotate({"cinquefoil.energy_j": 2.0})
    span.end("OK")

    inner, outer = spans.get_finished_spans()
    assert outer.name == "p.S/M"
    assert outer.kind is SpanKind.SERVER
    assert parent_id(outer) == HEADER[36:52]
    assert sent == f"00-{TRACE}-{outer.context.span_id:016x}-01"
    assert parent_id(inner) == f"{outer.context.span_id:016x}"
    assert f"{inner.context.trace_id:032x}" == TRACE
    assert outer.context.trace_state.get("a") == "1"
    assert inner.attributes == {"cinquefoil.energy_j": 2.0, "rpc.response.status_code": "OK"}
    assert outer.attributes
    assert outer.attributes["rpc.method"] == "p.S/M"
    assert outer.attributes["rpc.response.status_code"] == "OK"


@pytest.mark.parametrize(
    ("status", "fault"),
    [("OK", False), ("INVALID_ARGUMENT", False), ("CANCELLED", False), ("UNAVAILABLE", True)],
)
def test_a_span_is_an_error_where_the_fault_is_ours(
    spans: InMemorySpanExporter, status: str, *, fault: bool
) -> None:
    span = tracing.begin_for("work", HEADER, "")
    assert span is not None
    span.end(status)
    span.end("OK")  # a second end does nothing

    (found,) = spans.get_finished_spans()
    assert (found.status.status_code is StatusCode.ERROR) is fault


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unavailable("away"), "UNAVAILABLE"),
        (ValueError("a bug"), "INTERNAL"),
        (asyncio.CancelledError(), "CANCELLED"),
    ],
    ids=["refused", "bug", "cancelled"],
)
def test_a_part_that_fails_says_how(
    spans: InMemorySpanExporter, error: BaseException, status: str
) -> None:
    with pytest.raises(type(error)), tracing.part("work"):
        raise error

    (found,) = spans.get_finished_spans()
    assert found.attributes
    assert found.attributes["rpc.response.status_code"] == status


def test_parts_lie_where_they_were_within_their_span(spans: InMemorySpanExporter) -> None:
    span = tracing.begin_for("worker.execute", HEADER, "")
    assert span is not None
    span.part("queue", 0.0, 0.5)
    span.part("compute", 0.5, 0.25)
    span.end("OK")

    queue, compute, whole = spans.get_finished_spans()
    assert (queue.start_time, queue.end_time) == (whole.start_time, compute.start_time)
    assert queue.start_time
    assert compute.end_time
    assert compute.end_time - queue.start_time == 750_000_000
    assert parent_id(queue) == parent_id(compute) == f"{whole.context.span_id:016x}"


def test_only_some_calls_may_begin_a_trace(spans: InMemorySpanExporter) -> None:
    assert tracing.enter("/p.S/Watch", [], may_begin=False) is None
    assert tracing.begin_for("worker.execute", "", "") is None

    root = tracing.enter("/p.S/M", [], may_begin=True)

    assert root is not None
    assert tracing.traceparent.get() == root.traceparent != ""


def test_a_callers_wish_not_to_be_recorded_goes_on() -> None:
    made, exporter = recorder(ParentBased(root=ALWAYS_OFF))
    with tracing.recorded(made):
        span = tracing.enter("/p.S/M", [("traceparent", f"{HEADER[:-2]}00")], may_begin=True)
        assert span is not None
        span.end("OK")

    assert exporter.get_finished_spans() == ()
    assert tracing.traceparent.get()[:36] == HEADER[:36]
    assert tracing.traceparent.get().endswith("-00")


def test_nothing_is_recorded_unless_the_environment_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(export.ENDPOINT, raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)

    with exported("router"):
        assert not tracing.recording()
        assert tracing.enter("/p.S/M", [], may_begin=True) is None

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    assert export.enabled("traces")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not export.enabled("traces")

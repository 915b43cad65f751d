"""An OpenTelemetry collector on threads of its own: keeps the spans and metrics that it gets."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(
    trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer
):
    """Keeps what it gets.

    Attributes:
        spans: By service and name.
        metrics: The newest, by service and name.
    """

    def __init__(self) -> None:
        self.spans: dict[tuple[str, str], Span] = {}
        self.metrics: dict[tuple[str, str], Metric] = {}
        self._lock = threading.Lock()

    def Export(self, request: Any, context: Any) -> Any:
        """Keep spans or metrics: both services' only method has this name."""
        with self._lock:
            if isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest):
                for exported in request.resource_metrics:
                    for within in exported.scope_metrics:
                        for metric in within.metrics:
                            self.metrics[_service(exported), metric.name] = metric
                return metrics_service_pb2.ExportMetricsServiceResponse()
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self.spans[_service(resource), span.name] = span
            return trace_service_pb2.ExportTraceServiceResponse()


def _service(exported: Any) -> str:
    names = {each.key: each.value.string_value for each in exported.resource.attributes}
    assert names["service.instance.id"], "processes of one service are distinguished"
    return str(names["service.name"])


@contextmanager
def collecting(environment: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Run a collector to which this process and its children export."""
    made = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(made, server)  # type: ignore[no-untyped-call]  # generated
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(made, server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    environment.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    yield made
    server.stop(0).wait()

"""Export of spans and metrics, configured by OpenTelemetry's environment variables.

Off unless OTEL_EXPORTER_OTLP_ENDPOINT, or that of the signal (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
OTEL_EXPORTER_OTLP_METRICS_ENDPOINT), is set; then OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER,
OTEL_METRIC_EXPORT_INTERVAL, OTEL_RESOURCE_ATTRIBUTES and the others have their usual meaning. Child
processes of a service inherit them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from services.kit import proxies
from services.kit.telemetry import tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from prometheus_client import CollectorRegistry

Signal = Literal["traces", "metrics"]


class NotInstalled(Exception):
    """Spans or metrics are to be exported, and the libraries that do it are missing."""


class _Exporting(Protocol):
    def shutdown(self) -> None: ...


_SHUTDOWN_S: Final = 2.0

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"


def enabled(signal: Signal) -> bool:
    """Return whether the environment enables the export of spans ("traces") or metrics."""
    kind = signal.upper()
    return (
        bool(_endpoint(signal))
        and os.environ.get(f"OTEL_{kind}_EXPORTER", "otlp") == "otlp"
        and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
    )


def _endpoint(signal: Signal) -> str:
    names = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", ENDPOINT)
    return next((found for name in names if (found := os.environ.get(name))), "")


def _options(signal: Signal) -> Any:  # the exporters want less than gRPC takes
    """Return options of the channel to the collector: one on this machine is called directly."""
    address = _endpoint(signal).rpartition("://")[2]
    return () if proxies.variable_for(f"grpc://{address}") else (proxies.DIRECT,)


@contextmanager
def exported(service: str) -> Iterator[None]:
    """Record and export the process's spans while the block runs, if enabled.

    Leaving the block sends the remaining spans for at most two seconds. An unreachable collector
    delays nothing: spans are sent from a thread, and dropped when its queue is full.

    Args:
        service: Name of the service, unless OTEL_SERVICE_NAME is set.

    Raises:
        NotInstalled: The libraries are missing.
    """
    if not enabled("traces"):
        yield
        return
    with _needed("traces"):
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,  # an extra, and not small
        )
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - the same
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - the same

        from services.kit.telemetry.otel_spans import OtelRecorder  # noqa: PLC0415 - the same
    provider, exporter = (
        TracerProvider(resource=_resource(service), shutdown_on_exit=False),
        OTLPSpanExporter(channel_options=_options("traces")),
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        with tracing.recorded(OtelRecorder(provider.get_tracer("cinquefoil"))):
            yield
    finally:
        _end(provider, exporter)


@contextmanager
def pushed(service: str, registry: CollectorRegistry) -> Iterator[None]:
    """Export a registry's metrics while the block runs, if enabled, and once more at its end.

    They are read and sent from a thread, every OTEL_METRIC_EXPORT_INTERVAL (60,000 ms).

    Args:
        service: Name of the service, unless OTEL_SERVICE_NAME is set.
        registry: Metrics, as `/metrics` shows them.

    Raises:
        NotInstalled: The libraries are missing.
    """
    if not enabled("metrics"):
        yield
        return
    with _needed("metrics"):
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (  # noqa: PLC0415
            OTLPMetricExporter,  # an extra, and not small
        )

        from services.kit.telemetry.otel_metrics import reader  # noqa: PLC0415 - the same
    exporter = OTLPMetricExporter(channel_options=_options("metrics"))
    reading = reader(registry, exporter, _resource(service))
    try:
        yield
    finally:
        _end(reading, exporter)


@contextmanager
def _needed(signal: Signal) -> Iterator[None]:
    """Import the libraries in the block, and say what to install where one is missing."""
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # it logs every retry as a warning
    try:
        yield
    except ImportError as error:
        raise NotInstalled(
            f"the environment enables {signal} ({ENDPOINT}), but {error.name!r} is not installed:"
            " install cinquefoil[telemetry]"
        ) from error


def _resource(service: str) -> Resource:
    """Return the OpenTelemetry resource; its instance distinguishes processes of one service."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415 - an extra

    name = os.environ.get("OTEL_SERVICE_NAME") or f"cinquefoil-{service}"
    instance = f"{socket.gethostname()}-{os.getpid()}"
    return Resource.create({SERVICE_NAME: name, "service.instance.id": instance})


def _end(sending: _Exporting, exporter: _Exporting) -> None:
    """Send the remaining spans; the library itself would try to reach the collector for 30 s."""
    giving_up = Timer(_SHUTDOWN_S, exporter.shutdown)
    giving_up.start()
    sending.shutdown()
    giving_up.cancel()

"""Export of spans, configured by OpenTelemetry's environment variables.

Off unless OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set; then
OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES and the others have their
usual meaning. Child processes of a service inherit them.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Final

from services.kit.telemetry import tracing


class NotInstalled(Exception):
    """Spans are enabled, and the libraries that export them are missing."""


_SHUTDOWN_S: Final = 2.0

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def enabled() -> bool:
    """Return whether the environment enables spans."""
    return (
        any(os.environ.get(name) for name in ENDPOINTS)
        and os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp"
        and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
    )


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
    if not enabled():
        yield
        return
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # it logs every retry as a warning
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,  # an extra, and not small
        )
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415 - the same
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - the same
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - the same

        from services.kit.telemetry.otel_spans import OtelRecorder  # noqa: PLC0415 - the same
    except ImportError as error:
        raise NotInstalled(
            f"the environment enables traces ({ENDPOINTS[1]}), but {error.name!r} is not"
            " installed: install cinquefoil[telemetry]"
        ) from error
    name = os.environ.get("OTEL_SERVICE_NAME") or f"cinquefoil-{service}"
    resource = Resource.create({SERVICE_NAME: name})
    provider, exporter = (
        TracerProvider(resource=resource, shutdown_on_exit=False),
        OTLPSpanExporter(),
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        with tracing.recorded(OtelRecorder(provider.get_tracer("cinquefoil"))):
            yield
    finally:
        # The library itself would try to reach the collector for 30 s.
        giving_up = Timer(_SHUTDOWN_S, exporter.shutdown)
        giving_up.start()
        provider.shutdown()
        giving_up.cancel()

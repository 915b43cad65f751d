"""Export of spans, for whoever asks for it in OpenTelemetry's own environment variables.

Off unless OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set; then
OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES and the others mean what
they mean everywhere. Processes that a service starts inherit them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Final

from services.kit.telemetry import tracing


class NotInstalled(Exception):
    """Spans are wanted, and what exports them is missing."""


_LAST_WORDS_S: Final = 2.0

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def wanted() -> bool:
    """Tell whether the environment asks for spans."""
    return (
        any(os.environ.get(name) for name in ENDPOINTS)
        and os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp"
        and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
    )


@contextmanager
def exported(service: str) -> Iterator[None]:
    """Record and export the process's spans while the block runs, where that is wanted.

    Leaving sends what is left, for two seconds at most. A collector that is away holds nobody up:
    spans are sent from a thread, and what does not fit its queue is dropped.

    Args:
        service: Its name, unless OTEL_SERVICE_NAME gives another.

    Raises:
        NotInstalled: The libraries are missing.
    """
    if not wanted():
        yield
        return
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # every retry is a warning to it
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
            f"the environment asks for traces ({ENDPOINTS[1]}), but {error.name!r} is not"
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
        # The library itself would try for 30 s to reach a collector that is away.
        giving_up = Timer(_LAST_WORDS_S, exporter.shutdown)
        giving_up.start()
        provider.shutdown()
        giving_up.cancel()

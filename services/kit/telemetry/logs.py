"""Structured logs: JSON, or colour on a terminal; without secrets."""

from __future__ import annotations

import logging
import sys

import structlog

from services.kit.telemetry.tracing import trace_id, traceparent


def _add_trace(_: object, __: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    header = traceparent.get()
    if header:
        event["trace_id"] = trace_id(header)
    return event


def configure(service: str, *, level: str = "info") -> None:
    """Set up logging for this process; call once, before the first log line.

    Args:
        service: Name bound to every line.
        level: "debug", "info", "warning" or "error".
    """
    human = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_trace,
            *(
                [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
                if human
                else [
                    # Without locals: they may hold secrets, and take seconds to print.
                    structlog.processors.ExceptionRenderer(
                        structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
                    ),
                    structlog.processors.JSONRenderer(),
                ]
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger for one module."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=name)
    return logger

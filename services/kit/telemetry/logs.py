"""Structured logs: JSON, or colour on a terminal; without secrets."""

import logging
import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TextIO, cast

# structlog imports rich where it finds it, for tracebacks that services never print: a fifth of the
# modules that a worker would load before it serves.
_without_rich = "rich" not in sys.modules
if _without_rich:
    sys.modules["rich"] = cast(Any, None)
import structlog  # noqa: E402

if _without_rich:
    del sys.modules["rich"]

from services.kit.telemetry.tracing import trace_id, traceparent  # noqa: E402

level_now: int = logging.INFO


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
        wrapper_class=_filtering(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Stderr(sys.stderr))),
        # Not cached: `set_level` must reach every logger.
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(service=service)


class _Stderr:
    """Standard error, for a log whose disk may be full: a line that it does not take is lost."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """Write a line, or lose it."""
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        """Flush, or lose the lines."""
        with suppress(OSError):
            self._file.flush()


def set_level(level: str) -> None:
    """Change the level from which lines are logged; see `configure`."""
    structlog.configure(wrapper_class=_filtering(level))


def _filtering(level: str) -> type[structlog.typing.FilteringBoundLogger]:
    global level_now  # noqa: PLW0603 - of the process, like structlog's own settings
    level_now = logging.getLevelName(level.upper())
    return structlog.make_filtering_bound_logger(level_now)


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger for one module."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=name)
    return logger


class Tracebacks:
    """Bugs whose traceback was logged recently.

    A bug is often met again and again: a cycle retries, a client polls. Its traceback goes to the
    log the first time, and again after an hour; in between a line is enough.

    Args:
        clock: Returns seconds that never go back.
    """

    AGAIN_S: Final = 3600.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_s: dict[tuple[object, ...], float] = {}

    def details(self, error: BaseException) -> dict[str, Any]:
        """Return a log line's fields for an error: its traceback, or the message alone."""
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = None if frame is None else (frame.tb_frame.f_code.co_filename, frame.tb_lineno)
        key, now_s = (type(error), where), self._clock()
        if now_s - self._logged_s.get(key, -math.inf) < self.AGAIN_S:
            return {"error": repr(error)}
        self._logged_s[key] = now_s
        return {"exc_info": error}

"""Wrapper of every HTTP handler: checks the caller, maps errors, counts and traces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from services.kit.errors import (
    Internal,
    PermissionDenied,
    ResourceExhausted,
    ServiceError,
)
from services.kit.http.context import HttpContext
from services.kit.http.encodings import compress
from services.kit.http.slow_clients import pieces, sent
from services.kit.http.statuses import TOO_LARGE, ErrorForm, refusal
from services.kit.rpc import Access
from services.kit.rpc.call_metrics import CALLS
from services.kit.telemetry import logs, tracing

_log = logs.get("http")
_tracebacks = logs.Tracebacks()

_RETRY_S: Final = 1.0


@dataclass(eq=False)
class Guard:
    """Wraps handlers.

    Attributes:
        access: Who may call what; None: everybody everything.
        max_requests: Requests that may be open at a time; further ones are refused.
        max_request_bytes: Largest body, after decompression.
        free_bytes: Size of all further bodies together that may be in memory.
        charged: Returns what counts a call of a method, in a context, while a block runs.
        section: Section of the deployment file with these limits, in errors.
    """

    access: Access | None
    max_requests: int
    max_request_bytes: int
    free_bytes: int
    charged: Callable[[str, HttpContext], AbstractContextManager[None]] = lambda *_: nullcontext()
    section: str = "router"
    _open: int = 0

    def around(self, method: str, rpc: str, form: ErrorForm, handler: Handler) -> Handler:
        """Return a handler with callers checked, errors mapped, calls timed and traces bound.

        Args:
            method: Name of the method in metrics and traces, "/package.Service/Method".
            rpc: The rpc whose roles may call it.
            form: Body of errors.
            handler: Answers.
        """
        calls = CALLS.of(method)

        async def guarded(request: web.Request) -> web.StreamResponse:
            started_s, status = time.monotonic(), "OK"
            context = HttpContext(request)
            span = tracing.enter(method, context.invocation_metadata(), may_begin=True)
            self._open += 1
            try:
                self._admit(rpc, request, context)
                with self.charged(rpc, context):
                    response = await handler(request)
                compress(request, response)
                return await sent(request, response)
            except ServiceError as error:
                status = error.status
                return refusal(error, form)
            except (asyncio.CancelledError, ConnectionError):
                status = "CANCELLED"
                raise
            except Exception as error:  # noqa: BLE001 - the border: every error becomes a status here
                status = "INTERNAL"
                _log.error("unhandled error", method=method, **_tracebacks.details(error))
                return refusal(Internal("internal error"), form)
            finally:
                self._open -= 1
                elapsed_s = time.monotonic() - started_s
                calls.end(status, elapsed_s)
                if span is not None:
                    span.end(status)
                _log.debug("call", method=method, status=status, duration_ms=elapsed_s * 1e3)

        guarded.__doc__ = handler.__doc__
        return guarded

    def _admit(self, rpc: str, request: web.Request, context: HttpContext) -> None:
        if self.access is not None:
            self.access.admit(rpc, context)
        elif "Origin" in request.headers:
            raise PermissionDenied(
                "this address takes no requests from web pages: callers have no identity here",
                reason="FROM_A_WEB_PAGE",
            )
        if self._open > self.max_requests:
            raise ResourceExhausted(
                f"{self.max_requests} requests are open, and {self.section}.max_requests allows no "
                "more",
                reason="TOO_MANY_REQUESTS",
                retry_after_s=_RETRY_S,
            )

    @asynccontextmanager
    async def body(self, request: web.Request) -> AsyncIterator[bytearray]:
        """Hold the body of a request in memory while the block runs; it is handed over, not kept.

        Raises:
            ResourceExhausted: It is too large, or bodies already fill the memory they may take.
            DeadlineExceeded: The client has stopped sending.
        """
        limit, size = self.max_request_bytes, 0
        if (request.content_length or 0) > limit:
            raise self._too_large(request.content_length or 0)
        content = [bytearray()]
        try:
            async for piece in pieces(request):
                self._take(len(piece))
                size += len(piece)
                if size > limit:
                    raise self._too_large(size)
                content[0] += piece  # grows where it lies: a gigabyte is not there twice
            yield content.pop()
        finally:
            self.free_bytes += size

    def _take(self, size: int) -> None:
        if size > self.free_bytes:
            raise ResourceExhausted(
                f"bodies that are being received take the memory that {self.section}.max_queue_mib "
                "allows",
                reason="QUEUE_BYTES",
                retry_after_s=_RETRY_S,
            )
        self.free_bytes -= size

    def _too_large(self, size: int) -> ResourceExhausted:
        return ResourceExhausted(
            f"the request has {size} bytes or more; {self.section}.max_request_bytes allows "
            f"{self.max_request_bytes}",
            reason=TOO_LARGE,
        )

"""The console as a web application: files, documents at /api, and a stream of the present."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.console.cached import Cached
from services.console.readers import Document, Readers
from services.kit.errors import InvalidArgument, NotFound, ServiceError, Unavailable

STATIC: Final = Path(__file__).parent / "static"
REFRESH_S: Final = 1.0
"""How often the present is read while a page is open, s."""

_DIGITS: Final = 9
"""Of a plan version: plans are never that many."""

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
"""Of every response."""

_STATUSES: Final = {InvalidArgument: 400, NotFound: 404, Unavailable: 503}


def application(
    readers: Readers,
    hosts: Sequence[str],
    *,
    refresh_s: float = REFRESH_S,
    clock: Callable[[], float] = time.monotonic,
) -> Starlette:
    """Return the console.

    Args:
        readers: What it shows.
        hosts: Names under which browsers may address it: a page elsewhere that has its own name
            resolve to this machine reads nothing (DNS rebinding). "*": any.
        refresh_s: How often the present is read while a page is open, s.
        clock: Monotonic time, s.
    """
    present = Cached(readers.now, refresh_s, clock)
    explaining = asyncio.Semaphore(1)  # each is a computation of the planner

    async def now(_: Request) -> Response:
        return _json(await present.get())

    async def events(_: Request) -> Response:
        return StreamingResponse(_events(present, refresh_s), media_type="text/event-stream")

    async def plans(_: Request) -> Response:
        return _json(await readers.plans())

    async def plan(request: Request) -> Response:
        return _json(await readers.plan(_version(request.path_params, "version")))

    async def explanation(request: Request) -> Response:
        version = _version(request.path_params, "version")
        async with explaining:
            return _json(await readers.explanation(version))

    async def difference(request: Request) -> Response:
        versions = (_version(request.query_params, name) for name in ("from", "to"))
        return _json(await readers.difference(*versions))

    async def index(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    return Starlette(
        routes=[
            Route("/", index),
            Route("/api/now", now),
            Route("/api/events", events),
            Route("/api/plans", plans),
            Route("/api/plans/{version}", plan),
            Route("/api/plans/{version}/explanation", explanation),
            Route("/api/diff", difference),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            Middleware(_WithHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)),
        ],
        exception_handlers={ServiceError: _failed},
    )


class _WithHeaders:
    """Adds HEADERS to every response, also to those of other middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *ours]}
            await send(message)

        await self._app(scope, receive, with_headers)


async def _events(present: Cached[Document], refresh_s: float) -> AsyncIterator[str]:
    """Yield the present and every change of it as server-sent events, without end."""
    sent = ""
    while True:
        text = _text(await present.get())
        # A comment keeps the connection known to be alive.
        yield f"data: {text}\n\n" if text != sent else ": unchanged\n\n"
        sent = text
        await asyncio.sleep(refresh_s)


def _version(given: Any, name: str) -> int:
    text = str(given.get(name, ""))
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise InvalidArgument(
            f"{name}: must be a plan version of at most {_DIGITS} digits; got {text[:80]!r}"
        )
    return int(text)


async def _failed(_: Request, error: Exception) -> Response:
    """Answer with the sentence of a service's error."""
    status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 502)
    return _json({"error": getattr(error, "message", str(error))}, status)


def _json(document: Document, status: int = 200) -> Response:
    return Response(_text(document), status, media_type="application/json")


def _text(document: Document) -> str:
    return json.dumps(_finite(document), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    """Return a document that JSON can carry: objects as mappings, figures finite or null."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case None | str() | int():
            return value
        case _:
            return _finite(vars(value))

"""The console as a web application: files, documents at /api, and a stream of the present."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from services.cli.web_console.endpoints import Endpoints, answering, as_json
from services.cli.web_console.guard import Guarded, WithHeaders
from services.cli.web_console.identity import READ_ONLY, Rights
from services.cli.web_console.present import Present
from services.cli.web_console.queries import version
from services.cli.web_console.readers import ServiceReaders
from services.console.page import STATIC
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServiceError,
    Unavailable,
)

REFRESH_S: Final = 1.0
"""How often the present is read while a page is open, s."""

_STATUSES: Final = {
    InvalidArgument: 400,
    PermissionDenied: 403,
    NotFound: 404,
    FailedPrecondition: 409,
    Unavailable: 503,
}


def application(
    readers: ServiceReaders,
    hosts: Sequence[str],
    rights: Rights = READ_ONLY,
    *,
    refresh_s: float = REFRESH_S,
    clock: Callable[[], float] = time.monotonic,
) -> Starlette:
    """Return the console.

    Args:
        readers: What it shows.
        hosts: Names under which browsers may address it: a page elsewhere that has its own name
            resolve to this machine reads nothing (DNS rebinding). "*": any.
        rights: Who may see it, and whether it may change the deployment.
        refresh_s: How often the present is read while a page is open, s.
        clock: Monotonic time, s.
    """
    present = Present(readers, refresh_s, clock)
    ours = Endpoints(readers, present, rights)
    return Starlette(
        routes=[
            Route("/", _index),
            Route("/api/now", answering(lambda _: present.get())),
            Route("/api/events", ours.events),
            Route("/api/receipts", ours.receipts),
            Route("/api/history", answering(lambda _: readers.history())),
            Route("/api/plans", answering(lambda _: readers.plans())),
            Route(
                "/api/plans/{version}",
                answering(lambda its: readers.plan(version(its.path_params, "version"))),
            ),
            Route("/api/plans/{version}/explanation", ours.explanation),
            Route(
                "/api/diff",
                answering(
                    lambda its: readers.difference(
                        version(its.query_params, "from"), version(its.query_params, "to")
                    )
                ),
            ),
            Route("/api/what-if", ours.what_if),
            Route("/api/sweep", ours.sweep),
            Route("/api/models", answering(lambda _: readers.models())),
            Route("/api/account", ours.account),
            Route("/api/account.csv", ours.account_csv),
            Route("/api/session", ours.session),
            Route("/api/login", ours.login, methods=["POST"]),
            Route("/api/change/{order}", ours.change, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            Middleware(WithHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)),
            Middleware(Guarded, tokens=rights.tokens),
            Middleware(GZipMiddleware),  # streams of events are left as they are
        ],
        exception_handlers={ServiceError: _failed},
    )


async def _index(_: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def _failed(_: Request, error: Exception) -> Response:
    """Answer with the sentence of a service's error."""
    status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 502)
    return as_json({"error": getattr(error, "message", str(error))}, status)

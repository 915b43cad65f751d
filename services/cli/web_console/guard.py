"""Checks of every request of the console, and headers of every answer."""

import math
from collections.abc import Sequence
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from services.cli.web_console.identity import Tokens
from services.console.documents import Document, as_text
from services.kit.errors import ServiceError
from services.kit.http.slow_clients import sent
from services.kit.http.statuses import STATUSES

COOKIE: Final = "cinquefoil-console"
OWNER: Final = web.RequestKey("owner", str)
"""Owner of the token that a request shows; absent: it shows none."""
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

_OURS: Final = {"same-origin", "none", ""}
"""Of Sec-Fetch-Site: this console's pages, the address bar, and programs that are no browser."""
_STATUSES: Final = STATUSES | {"FAILED_PRECONDITION": 409}
_SMALL: Final = 500
"""Answers below this size are not compressed, bytes."""


async def with_headers(_: web.BaseRequest, response: web.StreamResponse) -> None:
    """Add HEADERS to a response, also to those that refuse."""
    response.headers.update(HEADERS)


def guard(hosts: Sequence[str], tokens: Tokens | None) -> Middleware:
    """Return the middleware of every handler.

    It refuses requests under another name, requests for data from pages of others, and those
    without an identity where one is needed. Changes additionally need an identity always, and a
    body that a form of another page cannot send. The pages themselves are the same for every
    reader, and free to read.

    Args:
        hosts: Names under which the console may be addressed; "*": any.
        tokens: Tokens that may read; None: every caller may.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if "*" not in hosts and host_name(request.headers.get("host", "")) not in hosts:
            return as_json({"error": "This console has another name."}, 400)
        try:
            if request.path.startswith("/api/"):
                if tokens is not None and (owner := _owner(request, tokens)):
                    request[OWNER] = owner
                if refused := _refusal(request, identified=tokens is not None):
                    return as_json({"error": refused[1]}, refused[0])
            response = await handler(request)
        except ServiceError as error:
            response = as_json({"error": error.message}, _STATUSES.get(error.status, 502))
            if error.retry_after_s is not None:
                response.headers["retry-after"] = str(math.ceil(error.retry_after_s))
        return await sent(request, _compressed(response))

    return guarded


def as_json(document: Document, status: int = 200) -> web.Response:
    """Return a response that carries a document."""
    return web.Response(text=as_text(document), status=status, content_type="application/json")


def host_name(host: str) -> str:
    """Return a Host header without its port."""
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _owner(request: web.Request, tokens: Tokens) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return tokens.owner(token.strip(), request.remote or "")
    return tokens.of_session(request.cookies.get(COOKIE, ""))


def _refusal(request: web.Request, *, identified: bool) -> tuple[int, str] | None:
    if request.headers.get("sec-fetch-site", "") not in _OURS:
        return 403, "This console answers its own pages only."
    if request.method == "POST" and request.content_type != "application/json":
        return 415, "content-type: must be application/json"
    if identified and request.path != "/api/login" and OWNER not in request:
        return 401, "Log in with a token of console.token_file."
    return None


def _compressed(response: web.StreamResponse) -> web.StreamResponse:
    """Compress a document or a file; leave streams of events as they are."""
    large = isinstance(response, web.Response) and (response.content_length or 0) >= _SMALL
    if large or isinstance(response, web.FileResponse):
        response.enable_compression()
        response.headers["vary"] = "Accept-Encoding"
    return response

"""What every request meets first: headers of all answers, foreign pages, identities."""

import json
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.cli.web_console.identity import Tokens

COOKIE: Final = "cinquefoil-console"
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


class WithHeaders:
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


class Guarded:
    """Refuses requests for data from pages of others, and without an identity where one is needed.

    Changes additionally need an identity always, and a body that a form of another page cannot
    send. The pages themselves are the same for every reader, and free to read.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens | None) -> None:
        """Guard an application; tokens None: every reader is welcome."""
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        if scope["type"] == "http" and request.url.path.startswith("/api/"):
            scope["state"] = {"owner": self._owner(request)}
            refusal = self._refusal(request)
            if refusal:
                status, why = refusal
                answer = Response(json.dumps({"error": why}), status, media_type="application/json")
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _owner(self, request: Request) -> str | None:
        if self._tokens is None:
            return None
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._tokens.owner(token.strip())
        return self._tokens.of_session(str(request.cookies.get(COOKIE, "")))

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        headers = request.headers
        if headers.get("sec-fetch-site", "") not in _OURS:
            return 403, "This console answers its own pages only."
        if request.method == "POST" and headers.get("content-type") != "application/json":
            return 415, "content-type: must be application/json"
        if request.url.path == "/api/login" or self._tokens is None:
            return None
        if request.state.owner is None:
            return 401, "Log in with a token of console.token_file."
        return None

"""What the console answers at each address."""

import asyncio
import csv
import io
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from hashlib import sha256
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from services.cli.web_console.feeds import Feeds
from services.cli.web_console.guard import COOKIE
from services.cli.web_console.identity import Rights, session_of
from services.cli.web_console.present import Present
from services.cli.web_console.queries import body, circumstances, hours, receipts, version
from services.cli.web_console.readers import ServiceReaders
from services.console.documents import Document, as_text
from services.kit.errors import PermissionDenied, ServiceError
from services.kit.telemetry import logs

_log = logs.get("console")
_DIGITS: Final = 16


class Endpoints:
    """Answers requests from a deployment's readers."""

    def __init__(self, readers: ServiceReaders, present: Present, rights: Rights) -> None:
        """Answer from `readers`; see `application`."""
        self._readers, self._present, self._rights = readers, present, rights
        self._feeds = Feeds(readers.receipts)
        self._computing = asyncio.Semaphore(1)  # each is a computation of the planner

    async def events(self, request: Request) -> Response:
        """Stream the present; a page that comes back gets it only if it has changed."""
        known = request.headers.get("last-event-id", "")
        return StreamingResponse(_events(self._present, known), media_type="text/event-stream")

    async def receipts(self, request: Request) -> Response:
        """Stream receipts of answers."""
        return _stream(self._feeds.follow(receipts(request.query_params)))

    async def explanation(self, request: Request) -> Response:
        """Return why a plan is as it is."""
        which = version(request.path_params, "version")
        async with self._computing:
            return as_json(await self._readers.explanation(which))

    async def account(self, request: Request) -> Response:
        """Return the account."""
        by = request.query_params.get("by", "model")
        return as_json(await self._readers.account(by, hours(request.query_params)))

    async def account_csv(self, request: Request) -> Response:
        """Return the account's rows as CSV."""
        by = request.query_params.get("by", "model")
        found = (await self._readers.account(by, hours(request.query_params)))["rows"]
        text = io.StringIO()
        table = csv.DictWriter(text, list(vars(found[-1])))
        table.writeheader()
        table.writerows(vars(row) for row in found)
        return Response(text.getvalue(), media_type="text/csv")

    async def what_if(self, request: Request) -> Response:
        """Return what would be decided."""
        given = circumstances(request.query_params)
        async with self._computing:
            return as_json(await self._readers.what_if(given))

    async def sweep(self, request: Request) -> Response:
        """Stream what plans for several weights of carbon would promise."""
        return _stream(self._readers.sweep(circumstances(request.query_params)))

    async def session(self, request: Request) -> Response:
        """Return who looks, and whether this console can change anything."""
        return as_json({"owner": request.state.owner, "changes": self._rights.can_change})

    async def login(self, request: Request) -> Response:
        """Let the owner of a token in."""
        tokens, token = self._rights.tokens, str((await body(request)).get("token", ""))
        owner = None if tokens is None else tokens.owner(token)
        if owner is None:
            raise PermissionDenied("This token is not in console.token_file.")
        response = as_json({"owner": owner, "changes": self._rights.can_change})
        response.set_cookie(COOKIE, session_of(token), httponly=True, samesite="strict")
        return response

    async def change(self, request: Request) -> Response:
        """Carry out an order of a token's owner."""
        owner, order = request.state.owner, request.path_params["order"]
        if self._rights.carry_out is None or owner is None:
            raise PermissionDenied(
                "This console is read-only: console.allow_changes, with console.token_file, lets "
                "it change the deployment."
            )
        given = await body(request)
        log = _log.bind(actor=owner, order=order, given=given)
        try:
            answer = await self._rights.carry_out(order, given, owner)
        except ServiceError as error:
            log.warning("change refused", error=str(error))
            raise
        log.info("change")
        return as_json(answer)


async def _events(present: Present, known: str) -> AsyncIterator[str]:
    """Yield the present and every change of it as server-sent events, without end.

    Args:
        present: What is shown.
        known: Id of the event that the page has (Last-Event-ID): the digest of a document.
    """
    async with aclosing(present.documents()) as documents:
        async for document in documents:
            text = as_text(document)
            digest = sha256(text.encode()).hexdigest()[:_DIGITS]
            # A comment keeps the connection known to be alive.
            yield f"id: {digest}\ndata: {text}\n\n" if digest != known else ": unchanged\n\n"
            known = digest


def _stream(found: AsyncGenerator[Document, None]) -> Response:
    """Return documents as server-sent events, then an event "end", or "problem" with the reason."""

    async def events() -> AsyncIterator[str]:
        async with aclosing(found):
            try:
                async for document in found:
                    yield f"data: {as_text(document)}\n\n"
            except ServiceError as error:
                yield f"event: problem\ndata: {as_text({'error': error.message})}\n\n"
            else:
                yield "event: end\ndata: {}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def answering(
    read: Callable[[Request], Awaitable[Document]],
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that answers with the document that `read` returns."""

    async def endpoint(request: Request) -> Response:
        return as_json(await read(request))

    return endpoint


def as_json(document: Document, status: int = 200) -> Response:
    """Return a response that carries a document."""
    return Response(as_text(document), status, media_type="application/json")

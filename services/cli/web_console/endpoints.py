"""The console's endpoints."""

import asyncio
import csv
import io
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from hashlib import sha256
from typing import Final

from aiohttp import web

from services.cli.web_console.feeds import Feeds
from services.cli.web_console.guard import COOKIE, OWNER, as_json, host_name
from services.cli.web_console.identity import SESSION_S, Rights
from services.cli.web_console.present import Present
from services.cli.web_console.queries import body, circumstances, hours, receipts, version
from services.cli.web_console.readers import ServiceReaders
from services.console.documents import Document, as_text
from services.kit.errors import PermissionDenied, ResourceExhausted, ServiceError
from services.kit.http.slow_clients import write
from services.kit.net import is_loopback_host
from services.kit.telemetry import logs

_log = logs.get("console")
_DIGITS: Final = 16
_MOST_STREAMS: Final = 128
"""Streams of events at a time, of the 256 connections that the console takes."""
_MOST_OF_A_READER: Final = 32


class Endpoints:
    """Answers requests from a deployment's readers."""

    def __init__(self, readers: ServiceReaders, present: Present, rights: Rights) -> None:
        """Answer from `readers`; see `application`."""
        self._readers, self._present, self._rights = readers, present, rights
        self._feeds = Feeds(readers.receipts)
        self._orders = set[asyncio.Task[Document]]()
        self._streams = Counter[str]()
        self._computing = asyncio.Semaphore(1)  # each is a computation of the planner

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Stream the present; a page that comes back gets it only if it has changed."""
        known = request.headers.get("last-event-id", "")
        return await self._stream(request, _events(self._present, known))

    async def receipts(self, request: web.Request) -> web.StreamResponse:
        """Stream receipts of answers."""
        found = self._feeds.follow(receipts(request))
        return await self._stream(request, _until_the_end(found))

    async def explanation(self, request: web.Request) -> web.StreamResponse:
        """Return the explanation of a plan."""
        which = version(request.match_info, "version")
        async with self._computing:
            return as_json(await self._readers.explanation(which))

    async def account(self, request: web.Request) -> web.StreamResponse:
        """Return the account."""
        by = request.query.get("by", "model")
        return as_json(await self._readers.account(by, hours(request)))

    async def account_csv(self, request: web.Request) -> web.StreamResponse:
        """Return the account's rows as CSV."""
        by = request.query.get("by", "model")
        found = (await self._readers.account(by, hours(request)))["rows"]
        text = io.StringIO()
        table = csv.DictWriter(text, list(vars(found[-1])))
        table.writeheader()
        table.writerows(vars(row) for row in found)
        return web.Response(text=text.getvalue(), content_type="text/csv")

    async def what_if(self, request: web.Request) -> web.StreamResponse:
        """Return the outcome of a dry run."""
        given = circumstances(request)
        async with self._computing:
            return as_json(await self._readers.what_if(given))

    async def sweep(self, request: web.Request) -> web.StreamResponse:
        """Stream the promises of plans for several weights of carbon."""
        found = self._readers.sweep(circumstances(request))
        return await self._stream(request, _until_the_end(found))

    async def session(self, request: web.Request) -> web.StreamResponse:
        """Return the reader's name, and whether this console can change anything."""
        return as_json({"owner": request.get(OWNER), "changes": self._rights.can_change})

    async def login(self, request: web.Request) -> web.StreamResponse:
        """Open a session for the owner of a token."""
        tokens, token = self._rights.tokens, str((await body(request)).get("token", ""))
        owner = None if tokens is None else tokens.owner(token, request.remote or "")
        if tokens is None or owner is None:
            raise PermissionDenied("This token is not in console.token_file.")
        response = as_json({"owner": owner, "changes": self._rights.can_change})
        # Plaintext is for this machine alone: browsers send the session elsewhere by HTTPS only.
        elsewhere = not is_loopback_host(host_name(request.headers.get("host", "")).strip("[]"))
        secure = elsewhere or request.headers.get("x-forwarded-proto") == "https"
        response.set_cookie(
            COOKIE,
            tokens.session(token),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=secure,
        )
        return response

    async def change(self, request: web.Request) -> web.StreamResponse:
        """Carry out an order of a token's owner."""
        owner, carry_out = request.get(OWNER), self._rights.carry_out
        if carry_out is None or owner is None:
            raise PermissionDenied(
                "This console is read-only: console.allow_changes, with console.token_file, lets "
                "it change the deployment."
            )
        order, given = request.match_info["order"], await body(request)
        log = _log.bind(actor=owner, order=order, given=given)

        async def carried_out() -> Document:
            try:
                answer = await carry_out(order, given, owner)
            except ServiceError as error:
                log.warning("change refused", error=str(error))
                raise
            log.info("change")
            return answer

        # A page that closes cancels this handler, not the order that it has given.
        task = asyncio.create_task(carried_out(), name="console.order")
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)
        return as_json(await asyncio.shield(task))

    async def _stream(
        self, request: web.Request, events: AsyncGenerator[str, None]
    ) -> web.StreamResponse:
        """Send server-sent events as they come; a client that goes, or does not read, ends them.

        Raises:
            ResourceExhausted: Too many streams are open, or too many of this reader.
        """
        reader = request.get(OWNER) or request.remote or ""
        if self._streams[reader] >= _MOST_OF_A_READER or self._streams.total() >= _MOST_STREAMS:
            raise ResourceExhausted(
                f"{_MOST_OF_A_READER} streams of events of one reader, {_MOST_STREAMS} of all, are"
                " open at most: close another page"
            )
        self._streams[reader] += 1
        try:
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            async with aclosing(events):
                await response.prepare(request)
                async for event in events:
                    await write(response, event.encode())
            return response
        finally:
            self._streams[reader] -= 1
            self._streams += Counter()  # those at zero go


async def _events(present: Present, known: str) -> AsyncGenerator[str, None]:
    """Yield the present and every change of it as server-sent events, without end.

    Args:
        present: The cached present.
        known: Id of the event that the page has (Last-Event-ID): the digest of a document.
    """
    async with aclosing(present.documents()) as documents:
        async for document in documents:
            text = as_text(document)
            digest = sha256(text.encode()).hexdigest()[:_DIGITS]
            # A comment keeps the connection known to be alive.
            yield f"id: {digest}\ndata: {text}\n\n" if digest != known else ": unchanged\n\n"
            known = digest


async def _until_the_end(found: AsyncGenerator[Document, None]) -> AsyncGenerator[str, None]:
    """Yield documents as server-sent events, then an event "end", or "problem" with the reason."""
    async with aclosing(found):
        try:
            async for document in found:
                yield f"data: {as_text(document)}\n\n"
        except ServiceError as error:
            yield f"event: problem\ndata: {as_text({'error': error.message})}\n\n"
        else:
            yield "event: end\ndata: {}\n\n"

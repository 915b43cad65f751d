"""An OpenADR 3 server (VTN) with events that a test sets; as a program, for trying by hand.

After the standard's OpenAPI: /auth/token (OAuth 2.0 client credentials), /programs, /events with
pagination, /reports. Subscriptions are not needed.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from aiohttp import web

CLIENT_ID, CLIENT_SECRET = "ven-1", "quite secret"


@dataclass
class Vtn:
    """The server.

    Attributes:
        url: Base URL of its API.
        events: Events by id, as JSON objects.
        programs: Programs by id.
        reports: Reports that came.
        answer: A whole answer in the place of every page of events; None: the events.
        down: It answers 503.
        date: Time of its clock; None: the right one.
        lasts_s: Life of a token, s.
        tokens: Tokens that it has given.
        polls: Requests for events that were let in.
    """

    url: str = ""
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    programs: dict[str, dict[str, Any]] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    answer: bytes | None = None
    down: bool = False
    date: datetime | None = None
    lasts_s: float = 3600
    tokens: set[str] = field(default_factory=set)
    polls: int = 0

    def revoke(self) -> None:
        """Revoke all tokens."""
        self.tokens.clear()

    def app(self) -> web.Application:
        """Return its HTTP application."""
        app = web.Application()
        app.on_response_prepare.append(self._dated)
        app.router.add_post("/auth/token", self._token)
        app.router.add_get("/events", self._events)
        app.router.add_get("/programs/{id}", self._program)
        app.router.add_post("/reports", self._report)
        app.router.add_put("/events/{id}", self._put)
        app.router.add_delete("/events/{id}", self._delete)
        return app

    async def _dated(self, _: web.Request, response: web.StreamResponse) -> None:
        if self.date is not None:
            response.headers["Date"] = format_datetime(self.date, usegmt=True)

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        own = (form.get("client_id"), form.get("client_secret")) == (CLIENT_ID, CLIENT_SECRET)
        if not own or form.get("grant_type") != "client_credentials":
            return web.json_response({"error": "invalid_client"}, status=401)
        token = secrets.token_urlsafe()
        self.tokens.add(token)
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": self.lasts_s}
        return web.json_response(answer)

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self.down:
            return web.json_response({"title": "down", "status": 503}, status=503)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return web.json_response({"title": "unauthorised", "status": 401}, status=401)
        return None

    async def _events(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(request):
            return refusal
        self.polls += 1
        if self.answer is not None:
            return web.Response(body=self.answer, content_type="application/json")
        skip, limit = int(request.query.get("skip", 0)), int(request.query.get("limit", 50))
        program = request.query.get("programID")
        found = [e for e in self.events.values() if program in (None, e.get("programID"))]
        return web.json_response(found[skip : skip + min(limit, 50)])

    async def _program(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(request):
            return refusal
        found = self.programs.get(request.match_info["id"])
        return web.json_response(found or {"status": 404}, status=200 if found else 404)

    async def _report(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(request):
            return refusal
        self.reports.append(await request.json())
        return web.json_response(self.reports[-1], status=201)

    async def _put(self, request: web.Request) -> web.Response:
        self.events[request.match_info["id"]] = await request.json()
        return web.json_response({})

    async def _delete(self, request: web.Request) -> web.Response:
        self.events.pop(request.match_info["id"], None)
        return web.json_response({})


@asynccontextmanager
async def vtn(port: int = 0) -> AsyncIterator[Vtn]:
    """Serve while the block runs."""
    server = Vtn()
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    host, bound = runner.addresses[0][:2]
    server.url = f"http://{host}:{bound}"
    try:
        yield server
    finally:
        await runner.cleanup()


async def _serve(port: int, reports: Path) -> None:
    """Serve for ever, and write reports to a file; events come by PUT /events/ID."""
    async with vtn(port) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        while True:
            await asyncio.sleep(1)
            reports.write_text(json.dumps(server.reports, indent=1))  # noqa: ASYNC240 - by hand


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), Path(sys.argv[2])))

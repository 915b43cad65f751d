"""The console as a web application: files, documents at /api, and a stream of the present."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from services.cli.web_console.endpoints import Endpoints
from services.cli.web_console.guard import as_json, guard, with_headers
from services.cli.web_console.identity import READ_ONLY, Rights
from services.cli.web_console.present import Present
from services.cli.web_console.queries import hours, step_s, version
from services.cli.web_console.readers import ServiceReaders
from services.console.documents import Document
from services.console.page import STATIC

REFRESH_S: Final = 1.0
"""Interval in which the present is read while a page is open, s."""


def application(
    readers: ServiceReaders,
    hosts: Sequence[str],
    rights: Rights = READ_ONLY,
    *,
    refresh_s: float = REFRESH_S,
    clock: Callable[[], float] = time.monotonic,
) -> web.Application:
    """Return the console.

    Args:
        readers: Readers of the deployment.
        hosts: Names under which browsers may address it: a page elsewhere that has its own name
            resolve to this machine reads nothing (DNS rebinding). "*": any.
        rights: Permissions to see it, and to change the deployment.
        refresh_s: How often the present is read while a page is open, s.
        clock: Monotonic time, s.
    """
    present = Present(readers, refresh_s, clock)
    ours = Endpoints(readers, present, rights)
    answers: dict[str, Handler] = {
        "/": _index,
        "/api/now": _answering(lambda _: present.get()),
        "/api/events": ours.events,
        "/api/receipts": ours.receipts,
        "/api/history": _answering(lambda its: readers.history(hours(its), step_s(its))),
        "/api/plans": _answering(lambda _: readers.plans()),
        "/api/plans/{version}": _answering(
            lambda its: readers.plan(version(its.match_info, "version"))
        ),
        "/api/plans/{version}/explanation": ours.explanation,
        "/api/diff": _answering(
            lambda its: readers.difference(version(its.query, "from"), version(its.query, "to"))
        ),
        "/api/what-if": ours.what_if,
        "/api/sweep": ours.sweep,
        "/api/models": _answering(lambda _: readers.models()),
        "/api/batches": _answering(lambda _: readers.batches()),
        "/api/account": ours.account,
        "/api/account.csv": ours.account_csv,
        "/api/session": ours.session,
    }
    app = web.Application(middlewares=[guard(hosts, rights.tokens)])
    app.on_response_prepare.append(with_headers)
    for path, handler in answers.items():
        app.router.add_get(path, handler)
    app.router.add_post("/api/login", ours.login)
    app.router.add_post("/api/change/{order}", ours.change)
    app.router.add_static("/static", STATIC)
    return app


def _answering(read: Callable[[web.Request], Awaitable[Document]]) -> Handler:
    """Return the handler that answers with the document that `read` returns."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return as_json(await read(request))

    return handler


async def _index(_: web.Request) -> web.StreamResponse:
    return web.FileResponse(STATIC / "index.html")

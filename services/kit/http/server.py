"""An HTTP/1.1 server: bind, TLS, bounds on what callers can take, drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from services.kit.descriptors import check_room
from services.kit.errors import FailedPrecondition
from services.kit.http.connections import Connections
from services.kit.net import bound_socket
from services.kit.rpc import ADDRESS_TAKEN
from services.kit.rpc.certificates import server_context
from services.kit.telemetry import logs

if TYPE_CHECKING:
    from services.kit.config import Tls

_log = logs.get("http")

_HANDSHAKE_S: Final = 10.0
_IDLE_S: Final = 75.0
_LINGER_S: Final = 2.0
"""Time for which the rest of a refused body is read, so that the client sees the answer, s."""
_BACKLOG: Final = 1024


@asynccontextmanager
async def serving_http(  # noqa: PLR0913 - one value per decision of the composition root
    address: str,
    app: web.Application,
    *,
    what: str = "HTTP",
    tls: Tls | None = None,
    certificate_required: bool = True,
    max_connections: int,
    by_host: bool = False,
    idle_s: float = _IDLE_S,
    grace_s: float,
    shared_port: bool = False,
) -> AsyncIterator[int]:
    """Serve an application while the block runs, and yield the port.

    A handler is cancelled when its client has gone. Heads are bounded by aiohttp (8 KiB per line,
    128 headers), bodies by the handlers that read them, and decompress them as they go.

    Args:
        address: "host:port"; port 0 picks a free one.
        app: The application.
        what: Name of what is served, for logs and errors.
        tls: Certificate of the server, read again when its file changes; None: plaintext.
        certificate_required: Under mutual TLS: whether callers without a certificate are turned
            away in the handshake; otherwise `Access` decides, for they may show a token.
        max_connections: Maximum number of `Connections`.
        by_host: Whether a host has a share of them: no identities are checked.
        idle_s: Time after which a connection without a whole request head is closed, s.
        grace_s: Time that requests in flight have to end, s.
        shared_port: Whether other processes listen on the port, too.

    Raises:
        FailedPrecondition: The address cannot be bound (reason ADDRESS_TAKEN), or the certificate
            cannot be read.
    """
    check_room(address, max_connections)
    logging.getLogger("aiohttp.server").addFilter(_is_ours)
    runner = web.AppRunner(
        app,
        handle_signals=False,
        access_log=None,
        handler_cancellation=True,
        auto_decompress=False,  # before the caller is known, and 1,000 bytes of each
        keepalive_timeout=idle_s,
        lingering_time=_LINGER_S,
        shutdown_timeout=grace_s,
    )
    await runner.setup()

    server = runner.server
    assert server is not None, "it was set up"  # noqa: S101
    try:
        context = None
        if tls is not None:
            context = server_context(tls, "http/1.1", required=certificate_required)
        try:
            listening = bound_socket(address, shared=shared_port)
        except OSError as error:
            message = f"cannot serve {what} at {address}: {error.strerror}"
            raise FailedPrecondition(message, reason=ADDRESS_TAKEN) from error
        listener = await asyncio.get_running_loop().create_server(
            Connections(server, max_connections, by_host=by_host),
            sock=listening,
            backlog=_BACKLOG,
            ssl=context,
            ssl_handshake_timeout=None if context is None else _HANDSHAKE_S,
        )
        host, port = listening.getsockname()[:2]
        _log.info("serving", what=what, address=f"{host}:{port}")
        try:
            yield port
        finally:
            listener.close()
    finally:
        await runner.cleanup()


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether an error is this side's: a damaged request is answered, not logged."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)

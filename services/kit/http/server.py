"""An HTTP/1.1 server: bind, TLS, bounds on what callers can take, drain."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from services.kit.errors import FailedPrecondition
from services.kit.net import bound_socket
from services.kit.rpc import ADDRESS_TAKEN
from services.kit.rpc.certificates import CertificateFiles
from services.kit.telemetry import logs

if TYPE_CHECKING:
    from services.kit.config import Tls

_log = logs.get("http")

_HANDSHAKE_S: Final = 10.0
_IDLE_S: Final = 75.0
"""Time after which a connection without a whole request head is closed, s."""
_LINGER_S: Final = 2.0
"""Time for which the rest of a refused body is read, so that the client sees the answer, s."""
_BACKLOG: Final = 1024


@asynccontextmanager
async def serving_http(  # noqa: PLR0913 - one value per decision of the composition root
    address: str,
    app: web.Application,
    *,
    tls: Tls | None = None,
    certificate_required: bool = True,
    max_connections: int,
    grace_s: float,
    shared_port: bool = False,
) -> AsyncIterator[int]:
    """Serve an application while the block runs, and yield the port.

    A handler is cancelled when its client has gone. Heads are bounded by aiohttp (8 KiB per line,
    128 headers), bodies by the handlers that read them.

    Args:
        address: "host:port"; port 0 picks a free one.
        app: What is served.
        tls: Certificate of the server, read again when its file changes; None: plaintext.
        certificate_required: Under mutual TLS: whether callers without a certificate are turned
            away in the handshake; otherwise `Access` decides, for they may show a token.
        max_connections: Further connections are closed.
        grace_s: Time that requests in flight have to end, s.
        shared_port: Whether other processes listen on the port, too.

    Raises:
        FailedPrecondition: The address cannot be bound (reason ADDRESS_TAKEN), or the certificate
            cannot be read.
    """
    runner = web.AppRunner(
        app,
        handle_signals=False,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=_IDLE_S,
        lingering_time=_LINGER_S,
        shutdown_timeout=grace_s,
    )
    await runner.setup()
    connections = _Connections(runner, tls, max_connections, required=certificate_required)
    try:
        listening = _bound(address, shared_port=shared_port)
        server = await asyncio.get_running_loop().create_server(
            connections,
            sock=listening,
            backlog=_BACKLOG,
            ssl=connections.context,
            ssl_handshake_timeout=None if tls is None else _HANDSHAKE_S,
        )
        host, port = listening.getsockname()[:2]
        _log.info("serving", address=f"{host}:{port}")
        try:
            yield port
        finally:
            server.close()
    finally:
        await runner.cleanup()


class _Connections:
    """Makes the protocol of each connection; the certificate is the one that the files have then.

    Attributes:
        context: TLS; None: plaintext.
    """

    def __init__(
        self, runner: web.AppRunner, tls: Tls | None, limit: int, *, required: bool
    ) -> None:
        self._runner = runner
        self._limit = limit
        self._files: CertificateFiles | None = None
        self.context: ssl.SSLContext | None = None
        if tls is None:
            return
        self._files = CertificateFiles(tls)
        if self._files.pair is None:
            raise FailedPrecondition("tls: a server needs certificate_file and key_file")
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.set_alpn_protocols(["http/1.1"])
        if tls.require_client_certificate:
            self.context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        self._load()

    def __call__(self) -> asyncio.Protocol:
        if self._files is not None and self._files.changed():
            self._load()
        server = self._runner.server
        if server is None or len(server.connections) >= self._limit:
            return _Refused()
        return server()

    def _load(self) -> None:
        if self.context is not None and self._files is not None:
            self._files.load_into(self.context)


class _Refused(asyncio.Protocol):
    """A connection beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _bound(address: str, *, shared_port: bool) -> socket.socket:
    try:
        return bound_socket(address, shared=shared_port)
    except OSError as error:
        message = f"cannot listen at {address}: {error.strerror}"
        raise FailedPrecondition(message, reason=ADDRESS_TAKEN) from error


class HttpContext:
    """What access checks, traces and quotas read of a call, in the form of gRPC's ServicerContext.

    Args:
        request: The request.
    """

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the headers that mean something to the router."""
        given = self._request.headers
        return tuple((name, value) for name in _READ for value in given.getall(name, ()))

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """Return what the caller's verified certificate calls it, under gRPC's names."""
        transport = self._request.transport
        shown: Any = transport.get_extra_info("peercert") if transport is not None else None
        if not shown:
            return {}
        names = [name.encode() for _, name in shown.get("subjectAltName", ())]
        subject = (pair for group in shown.get("subject", ()) for pair in group)
        return {
            "peer_spiffe_id": [name for name in names if name.startswith(b"spiffe://")],
            "x509_subject_alternative_name": names,
            "x509_common_name": [name.encode() for key, name in subject if key == "commonName"],
        }

    def peer(self) -> str:
        """Return the caller's address as gRPC writes it."""
        transport = self._request.transport
        place = transport.get_extra_info("peername") if transport is not None else None
        if not place:
            return "unix:"
        host, port = place[:2]
        return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


_READ: Final = ("authorization", "traceparent", "tracestate", "x-client-id")

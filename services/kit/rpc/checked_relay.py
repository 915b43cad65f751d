"""Connections of grpc.aio to servers of one role.

gRPC's C core checks the name in a server's certificate, and offers Python no other check. So a
channel leads to a relay in its own process, which speaks TLS with Python's `ssl`: every connection
is checked before a byte of a call leaves. Calls over a connection that failed get UNAVAILABLE and
the reason.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Any, Final, cast

import grpc

from services.kit.errors import ServiceError
from services.kit.h2 import Limits
from services.kit.h2.admission import EVERYBODY, Payer, Refused
from services.kit.h2.server_connection import ServerConnection
from services.kit.h2.server_state import ServerState
from services.kit.net import split_address
from services.kit.rpc.certificates import client_context, server_name

if TYPE_CHECKING:
    from services.kit.config import ExpectedServer, Tls

_REFUSES_S: Final = 0.2
"""Time for which calls are refused before the next one connects again, s."""

_CLOSES_S: Final = 1.0

_CREDENTIALS: Final = struct.Struct("3i")  # of SO_PEERCRED: process, user, group
_UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE.value[0]
_ANY_CALL: Final[Any] = grpc.stream_stream_rpc_method_handler(lambda *_: None)


class CheckedRelay:
    """Leads this process, and no other, to a server that has the role it must have.

    Attributes:
        target: Where gRPC dials it.
        sides: Ends of the connections that are open.
    """

    def __init__(self, address: str, tls: Tls, expected: ExpectedServer) -> None:
        """Bind it; nothing is dialled before the first connection.

        Args:
            address: "host:port" of the server.
            tls: Authority to trust, and the certificate to show; read for each connection.
            expected: Role of the server.
        """
        self._address, self._tls, self._expected = address, tls, expected
        name = f"cinquefoil-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{name}")
        self._server: asyncio.Server | None = None
        self.sides: set[_Side] = set()
        self.target = f"unix-abstract:{name}"

    async def start(self) -> None:
        """Take connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Near(self), sock=self._socket)

    async def close(self) -> None:
        """End all connections, and take no more."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        open_ = tuple(self.sides)
        for side in open_:
            side.transport.abort()
        if open_:
            await asyncio.wait([side.closed for side in open_], timeout=_CLOSES_S)

    async def connect(self, near: _Side) -> _Side:
        """Connect to the server.

        Raises:
            OSError: There is no connection (also ssl.SSLError).
            FailedPrecondition: A file of the certificates cannot be read.
        """
        host, port = split_address(self._address)
        _, far = await asyncio.get_running_loop().create_connection(
            lambda: _Side(self.sides, near),
            host,
            port,
            ssl=client_context(self._tls, "h2", expected=self._expected),
            server_hostname=server_name(self._tls, self._address),
        )
        return far


class _Side(asyncio.Protocol):
    """One end of a connection through the relay; what comes is written to the other."""

    transport: asyncio.Transport

    def __init__(self, sides: set[_Side], other: _Side | None = None) -> None:
        self._sides = sides
        self.other = other
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._sides.add(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        self._sides.discard(self)
        self.closed.set_result(None)
        if self.other is not None:
            self.other.transport.close()
            self.other = None


class _Near(_Side):
    """gRPC's end: what it sends waits until the other is there."""

    def __init__(self, relay: CheckedRelay) -> None:
        super().__init__(relay.sides)
        self._relay = relay
        self._early = bytearray()
        self._connecting: asyncio.Task[None] | None = None
        self._refusing: ServerConnection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        near = transport.get_extra_info("socket")
        found = near.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(found)[0] != os.getpid():
            self.transport.abort()
            return
        self._connecting = asyncio.create_task(self._join(), name="rpc.relay")

    def data_received(self, data: bytes) -> None:
        if self._refusing is not None:
            _feed(self._refusing, data)
        elif self.other is not None:
            self.other.transport.write(data)
        else:  # no more than HTTP/2's first windows
            self._early += data

    def connection_lost(self, _error: Exception | None) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._refusing is not None:
            self._refusing.connection_lost(_error)
        super().connection_lost(_error)

    async def _join(self) -> None:
        """Connect to the server; where that fails, refuse calls for a while."""
        try:
            self.other = await self._relay.connect(self)
        except (OSError, ServiceError) as error:  # also ssl.SSLError
            self._refusing = _refusing(_reason(error))
            self._refusing.connection_made(self.transport)
        early, self._early = bytes(self._early), bytearray()
        if early:
            self.data_received(early)


def _feed(protocol: ServerConnection, data: bytes) -> None:
    while data:
        buffer = protocol.get_buffer(len(data))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]


def _refusing(reason: str) -> ServerConnection:
    """Return a connection that ends calls with the reason that there is no server."""

    def admit(method: str, _context: object) -> Payer:
        if method:
            raise Refused(_UNAVAILABLE, reason)
        return EVERYBODY

    refusing = ServerConnection(ServerState(lambda _: _ANY_CALL, Limits(), admit=admit))
    refusing.loop.call_later(_REFUSES_S, refusing.leave)
    return refusing


def _reason(error: OSError | ServiceError) -> str:
    """Return why there is no connection, in OpenSSL's or the system's words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"CERTIFICATE_VERIFY_FAILED: {getattr(error, 'verify_message', error)}"
    if isinstance(error, ssl.SSLError):
        return f"TLS handshake failed: {error.reason or error}"
    if isinstance(error, ConnectionRefusedError):
        return "Connection refused"
    return str(error) or type(error).__name__

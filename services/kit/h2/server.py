"""A server of gRPC handlers on one event loop."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from services.kit.h2.admission import Admit
from services.kit.h2.call import Handler
from services.kit.h2.server_connection import ServerConnection
from services.kit.h2.server_state import Limits, ServerState
from services.kit.net import bound_socket

_BACKLOG: Final = 1024
_FAREWELL_S: Final = 0.25


class _Called(NamedTuple):
    method: str
    invocation_metadata: tuple[()] = ()


class Server:
    """Takes the same handlers as grpc.aio.Server."""

    def __init__(
        self,
        wrap: Callable[[str, Handler], Handler],
        limits: Limits,
        encoding: str = "",
        admit: Admit | None = None,
    ) -> None:
        """Make a server that listens nowhere yet.

        Args:
            wrap: Called once with each method's name and handler; returns what is run.
            limits: What callers can take.
            encoding: Of answers, where the caller reads it: "", "gzip" or "deflate".
            admit: Returns who makes a call, or refuses it; None: every caller may do everything.
        """
        self._wrap = wrap
        self._generic: list[Any] = []
        self._handlers: dict[str, Handler] = {}
        self._ports: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._servers: list[asyncio.Server] = []
        self._state = ServerState(self._handler, limits, encoding, admit)

    # ---- what generated code calls

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[Any]) -> None:
        """Serve these; of two for a method the first counts."""
        self._generic += generic_rpc_handlers

    def add_registered_method_handlers(self, service_name: str, method_handlers: Any) -> None:
        """Do nothing: the same handlers come as generic ones, too."""

    # ---- its life

    def listen(
        self, address: str, context: ssl.SSLContext | None = None, *, shared: bool = False
    ) -> int:
        """Bind an address and return its port.

        Args:
            address: "host:port"; port 0 picks a free one.
            context: TLS with ALPN "h2"; None: plaintext.
            shared: Whether other processes listen there, too.

        Raises:
            OSError: It cannot be bound.
        """
        bound = bound_socket(address, shared=shared)
        self._ports.append((bound, context))
        return int(bound.getsockname()[1])

    async def start(self) -> None:
        """Accept connections.

        Raises:
            OSError: Another process listens on a port.
        """
        loop = asyncio.get_running_loop()
        for bound, context in self._ports:
            server = await loop.create_server(
                lambda: ServerConnection(self._state),
                sock=bound,
                backlog=_BACKLOG,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self._state.limits.handshake_s,
            )
            self._servers.append(server)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, give those that run `grace_s`, then end them."""
        self._state.draining = True
        for server in self._servers:
            server.close()
        if not self._servers:
            for bound, _ in self._ports:
                bound.close()
        for connection in tuple(self._state.connections):
            connection.leave()
        await self._until(lambda: not self._state.calls.taken, grace_s)
        # Clients close after our GOAWAY; closing first would lose what they have not read.
        await self._until(lambda: not self._state.connections, min(grace_s, _FAREWELL_S))
        for connection in tuple(self._state.connections):
            connection.close()
        await self._until(lambda: not self._state.connections, _FAREWELL_S)
        for connection in tuple(self._state.connections):
            connection.transport.abort()

    async def _until(self, condition: Callable[[], bool], limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + limit_s
        while not condition() and loop.time() < end_s:  # noqa: ASYNC110 - of all connections
            await asyncio.sleep(0.01)

    def _handler(self, path: str) -> Handler:
        known = self._handlers.get(path)
        if known is None:
            for generic in self._generic:
                found = generic.service(_Called(path))
                if found is not None:
                    known = self._handlers[path] = self._wrap(path, found)
                    break
        return known

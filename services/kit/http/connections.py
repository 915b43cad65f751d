"""Open connections of an HTTP server: their number is bounded, and none takes what others need."""

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web

from services.kit import peer
from services.kit.h2.admission import OPERATOR, local_or_host
from services.kit.net import host_of

_RESERVE: Final = 8
"""One in so many is kept for callers on this machine, where no identities are checked."""


class Connections:
    """Connections of a server, each of a request handler.

    A further connection takes the place of the oldest that has no request in progress, such as one
    that stopped within a head; where there is none, it is closed. Where no identities are checked,
    one host has at most half, and an eighth is kept for callers on this machine.
    """

    def __init__(self, server: web.Server, most: int, *, by_host: bool) -> None:
        """Start without any.

        Args:
            server: Makes request handlers.
            most: Maximum number of connections.
            by_host: Whether a host has a share of them.
        """
        self._server, self._most, self._by_host = server, most, by_host
        self._of: dict[str, list[web.RequestHandler]] = {}

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a connection that arrives."""
        return _Arriving(self._admitted)

    def _admitted(self, transport: asyncio.BaseTransport) -> web.RequestHandler | None:
        """Return the handler of a connection; None: there is no room for it."""
        payer = local_or_host(host_of(peer.address(transport)))
        if not self._by_host or payer.rank == OPERATOR:
            return self._server() if self._has_room(self._server.connections, self._most) else None
        own = self._of[payer.name] = list(filter(_is_open, self._of.get(payer.name, ())))
        if not (
            self._has_room(own, max(self._most // 2, 1))
            and self._has_room(self._server.connections, self._most - self._most // _RESERVE)
        ):
            return None
        handler = self._server()
        own.append(handler)
        if len(self._of) > self._most:
            self._of = {
                host: found for host, found in self._of.items() if any(map(_is_open, found))
            }
        return handler

    def _has_room(self, held: list[web.RequestHandler], most: int) -> bool:
        """Return whether one more may be held, in the place of one that waits where it must."""
        if len(held) < most:
            return True
        waiting = next(filter(_waits, held), None)
        if waiting is not None:
            waiting.force_close()
        return waiting is not None


class _Arriving(asyncio.Protocol):
    """A connection until its caller is known: from then on it is a request handler's."""

    def __init__(
        self, admitted: Callable[[asyncio.BaseTransport], web.RequestHandler | None]
    ) -> None:
        self._admitted = admitted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        handler = self._admitted(transport)
        if handler is None:
            transport.close()
        else:
            transport.set_protocol(handler)
            handler.connection_made(transport)


def _is_open(connection: web.RequestHandler) -> bool:
    return connection.transport is not None


def _waits(connection: web.RequestHandler) -> bool:
    """Return whether an open connection has sent no whole head of a request to answer."""
    idle = not connection._request_in_progress  # noqa: SLF001 - aiohttp says it nowhere else
    return idle and _is_open(connection)

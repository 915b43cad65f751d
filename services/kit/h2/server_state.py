"""Limits of a server, and the room that all its connections share."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from services.kit.h2.admission import Admit, Room
from services.kit.h2.call import Handler
from services.kit.h2.turns import Turns

_DECOMPRESSING: Final = 4
_HEADS_BYTES: Final = 16 * 2**20
_UNTAKEN_BYTES: Final = 32 * 2**20
_SWEEP_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server's resources; the defaults are for calls of kilobytes between services.

    Attributes:
        message_bytes: Maximum size of a request; larger ones get RESOURCE_EXHAUSTED.
        receiving_bytes: Maximum size of all requests that come in pieces, together, bytes, or one
            request's; further ones get RESOURCE_EXHAUSTED. gRPC's C core has no such limit.
        connections: Maximum number of connections; further ones are closed at once.
        streams: Maximum number of calls at a time on one connection; further ones wait.
        calls: Maximum number of calls at a time; further ones get RESOURCE_EXHAUSTED. A call
            counts once its message is there. Where identities are checked, one caller may have
            half of them, and an eighth is kept for operators; so with connections and bytes.
        opening: Maximum number of calls whose message is not there yet, or KiB of their metadata;
            beyond it, a connection may have its share of them.
        handshake_s: Time that a connection has to speak HTTP/2, and TLS, s.
        dead_after_s: Time after which a silent client's calls end, s, >= 2.
        idle_s: Time after which a connection without calls is closed, s.
        age_s: Time after which a connection takes no new calls, s: clients connect again, with the
            certificate that they have then; calls in flight go on.
    """

    message_bytes: int = 2**20
    receiving_bytes: int = 2**28
    connections: int = 4096
    streams: int = 1000
    calls: int = 8192
    opening: int = 8192
    handshake_s: float = 10.0
    dead_after_s: float = 20.0
    idle_s: float = 600.0
    age_s: float = 3600.0


class OpenConnection(Protocol):
    """One of a server's connections."""

    transport: asyncio.Transport

    def leave(self) -> None:
        """Take no new calls."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...

    def end_laggards(self, now_s: float) -> None:
        """End calls that do not take their answers, where others need the room."""
        ...


@dataclass
class ServerState:
    """State shared by all connections of a server.

    Attributes:
        handler: Returns the handler of a method; None: there is none.
        limits: What callers can take.
        encoding: Of answers, where the caller reads it: "", "gzip", "deflate".
        admit: Returns who makes a call, or refuses it; None: every caller may do everything.
        connections: Those that are open.
        calls: Room for calls that run.
        connected: Room for connections.
        received: Room for the bytes of requests that come in pieces, or were compressed.
        unread: Room for the bytes of answers to callers who take about as many.
        untaken: Room for the bytes of other answers: of callers who have not shown that they read.
        heads: Room for the bytes of headers that were parsed and may come again.
        turns: Turns of connections at the event loop.
        opening: Calls whose message is not there yet, with the KiB of their metadata.
        decompressing: Bounds the large messages that are decompressed at a time.
    """

    handler: Callable[[str], Handler]
    limits: Limits
    encoding: str = ""
    admit: Admit | None = None
    connections: set[OpenConnection] = field(default_factory=set)
    opening: int = 0
    decompressing: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_DECOMPRESSING)
    )
    draining: bool = False
    swept_s: float = -math.inf

    def __post_init__(self) -> None:
        limits = self.limits
        self.calls, self.connected = Room(limits.calls), Room(limits.connections)
        self.received = Room(limits.receiving_bytes, limits.message_bytes)
        self.unread = Room(limits.receiving_bytes, limits.message_bytes)
        least = min(_UNTAKEN_BYTES, limits.receiving_bytes)
        self.untaken = Room(least, limits.message_bytes)
        self.heads, self.turns = Room(_HEADS_BYTES), Turns()

    def end_laggards(self, now_s: float) -> None:
        """Make room for answers: end calls that do not take theirs."""
        if now_s - self.swept_s < _SWEEP_S:
            return
        self.swept_s = now_s
        for connection in tuple(self.connections):
            connection.end_laggards(now_s)

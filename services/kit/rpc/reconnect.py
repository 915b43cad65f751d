"""Keeps a connection to a peer that comes and goes; logs only when its presence changes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import grpc

from services.kit.backoff import Backoff
from services.kit.clock import Clock
from services.kit.errors import leaves
from services.kit.rpc.failover import FailoverChannel
from services.kit.telemetry import logs

_log = logs.get("rpc.reconnect")


class ConnectionLost(Exception):
    """A session ended; the message says why."""


class Reconnector:
    """One peer, connected to again and again with exponential backoff.

    A session is what runs while the peer is connected: it calls `connected` when the peer has
    answered, and returns or raises when the connection is over.

    Args:
        peer: Name of the peer in log lines.
        clock: Clock to wait with.
        backoff: Delays between attempts.
        steady_s: Duration of a connection after which the next delay is the shortest again, s;
            0: every connection that was established.
        errors: What a session raises when the peer is away, besides ConnectionLost; any other
            error ends `run`.
        channel: What sessions call over. Where it leads to several servers, the next attempt does
            not wait any longer once one of them begins to serve.
    """

    def __init__(  # noqa: PLR0913 - how it waits, and what for
        self,
        peer: str,
        clock: Clock,
        *,
        backoff: Backoff | None = None,
        steady_s: float = 0.0,
        errors: tuple[type[Exception], ...] = (grpc.aio.AioRpcError,),
        channel: object = None,
    ) -> None:
        self._peer = peer
        self._clock = clock
        self._backoff = backoff or Backoff()
        self._steady_s = steady_s
        self._errors: tuple[type[Exception], ...] = (ConnectionLost, *errors)
        self._connected_s: float | None = None
        self._reason = ""
        self._failover = channel if isinstance(channel, FailoverChannel) else None

    def connected(self) -> None:
        """Note that the peer has answered; further calls in the same session do nothing."""
        if self._connected_s is None:
            self._connected_s = self._clock.monotonic()
            if self._reason:
                _log.info("peer is back", peer=self._peer)
            self._reason = ""
            if not self._steady_s:
                self._backoff.reset()

    async def run(self, session: Callable[[], Awaitable[None]]) -> NoReturn:
        """Run sessions one after another until cancelled.

        Args:
            session: Connects, and returns or raises when the connection has ended.
        """
        while True:
            self._connected_s = None
            begun = self._failover.begun.value if self._failover else 0
            reason = message = "the stream ended"
            try:
                await _apart(session)
            except* self._errors as group:
                reason, message = _described(group)
            raise_if_cancelled()
            self._disconnected(reason, message)
            await self._pause(self._backoff.next_s(), begun)

    async def _pause(self, delay_s: float, begun: int) -> None:
        if self._failover is None:
            await self._clock.sleep(delay_s)
            return
        waiting = {
            asyncio.create_task(self._clock.sleep(delay_s), name="reconnect.pause"),
            asyncio.create_task(
                self._failover.begun.until(lambda now: now > begun), name="reconnect.serving"
            ),
        }
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _disconnected(self, reason: str, message: str) -> None:
        began_s = self._connected_s
        if began_s is not None and self._clock.monotonic() - began_s > self._steady_s:
            self._backoff.reset()
        if reason != self._reason:
            _log.warning("peer is away", peer=self._peer, why=message)
        self._reason = reason


def raise_if_cancelled() -> None:
    """Raise CancelledError where the current task is being cancelled.

    Call it in a task that runs no TaskGroup itself (see `_apart`).

    A TaskGroup that is cancelled while one of its tasks fails raises that task's error only, and
    `asyncio.wait_for` before Python 3.12 may return instead.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _apart(session: Callable[[], Awaitable[None]]) -> None:
    """Run a session in a task of its own, which ends with it.

    A TaskGroup of Python 3.11 whose block has ended, and one of whose tasks fails then, leaves its
    task marked as being cancelled. Were that the reconnector's own, it would end without
    an error: so the mark, and a session that cancels itself, end with the session.
    """

    async def run() -> None:
        await session()

    task = asyncio.create_task(run(), name="reconnect.session")
    try:
        await task
    except asyncio.CancelledError:
        if task.done() and not task.cancelled():
            task.exception()  # it failed as its reconnector was cancelled
        raise_if_cancelled()
        raise ConnectionLost("the session was cancelled") from None


def _described(error: BaseException) -> tuple[str, str]:
    """Return a key of the reason, and a message, for the first error of a group."""
    error = next(leaves(error))
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code().name, f"{error.code().name}: {error.details()}"
    message = str(error) or type(error).__name__
    return message, message

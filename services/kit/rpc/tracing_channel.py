"""A channel whose calls propagate the trace of the call being served.

grpc.aio's client interceptors change the calls: a stream's `write` then only queues the message,
with two tasks for each, and returns before the peer has accepted it. Wrapping the methods costs
one context lookup per call and does not change the calls.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import grpc

from services.kit.rpc.checked_relay import CheckedRelay
from services.kit.telemetry.tracing import traceparent, tracestate

_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class TracedChannel:
    """A grpc.aio.Channel with `traceparent` and `tracestate` added to calls made under a trace."""

    def __init__(
        self, current: Callable[[], grpc.aio.Channel], relay: CheckedRelay | None = None
    ) -> None:
        """Trace the calls of a channel.

        Args:
            current: Returns the channel to make the next call on; another one than before where
                certificates were renewed.
            relay: Leads it to its server; None: gRPC does.
        """
        self._current = current
        self._relay = relay

    def __getattr__(self, name: str) -> Any:
        if name in _KINDS:
            return partial(self._traced, name)
        return getattr(self._current(), name)

    async def __aenter__(self) -> Self:
        if self._relay is not None:
            await self._relay.start()
        await self._current().__aenter__()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._current().close()
        if self._relay is not None:
            await self._relay.close()

    def _traced(self, kind: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        channel = self._current()
        method = getattr(channel, kind)(*args, **kwargs)

        def call(*args_: Any, metadata: Any = None, **kwargs_: Any) -> Any:
            nonlocal channel, method
            if (current := self._current()) is not channel:
                channel, method = current, getattr(current, kind)(*args, **kwargs)
            header = traceparent.get()
            if header:
                metadata = (*(metadata or ()), ("traceparent", header))
                state = tracestate.get()
                if state:
                    metadata = (*metadata, ("tracestate", state))
            return method(*args_, metadata=metadata, **kwargs_)

        return call

"""A channel whose calls propagate the trace of the call being served.

grpc.aio's client interceptors change the calls: a stream's `write` then only queues the message,
with two tasks for each, and returns before the peer has accepted it. Wrapping the methods costs
one context lookup per call and does not change the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from services.kit.telemetry.tracing import traceparent, tracestate


class TracedChannel(grpc.aio.Channel):
    """A channel with `traceparent` and `tracestate` added to calls made under a trace."""

    def __init__(self, current: Callable[[], grpc.aio.Channel]) -> None:
        """Trace the calls of a channel.

        Args:
            current: Returns the channel to make the next call on; another one than before where
                certificates were renewed.
        """
        self._current = current

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """Return the method, traced."""
        return self._traced("unary_unary", args, kwargs)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """Return the method, traced."""
        return self._traced("unary_stream", args, kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """Return the method, traced."""
        return self._traced("stream_unary", args, kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """Return the method, traced."""
        return self._traced("stream_stream", args, kwargs)

    async def close(self, grace: float | None = None) -> None:
        """Close the channel; see grpc.aio.Channel."""
        await self._current().close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the connection; see grpc.aio.Channel."""
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait for another state; see grpc.aio.Channel."""
        await self._current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until connected; see grpc.aio.Channel."""
        await self._current().channel_ready()

    async def __aenter__(self) -> Self:
        await self._current().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._current().__aexit__(kind, error, traceback)

    def _traced(self, kind: str, args: Any, kwargs: Any) -> Callable[..., Any]:
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

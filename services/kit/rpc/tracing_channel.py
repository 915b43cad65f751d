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
    """`channel`, with `traceparent` and `tracestate` added to calls made under a trace."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """Return the method, traced."""
        return _traced(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """Return the method, traced."""
        return _traced(self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """Return the method, traced."""
        return _traced(self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """Return the method, traced."""
        return _traced(self._channel.stream_stream(*args, **kwargs))

    async def close(self, grace: float | None = None) -> None:
        """Close the channel; see grpc.aio.Channel."""
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the connection; see grpc.aio.Channel."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait for another state; see grpc.aio.Channel."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until connected; see grpc.aio.Channel."""
        await self._channel.channel_ready()

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._channel.__aexit__(kind, error, traceback)


def _traced(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
        header = traceparent.get()
        if header:
            metadata = (*(metadata or ()), ("traceparent", header))
            state = tracestate.get()
            if state:
                metadata = (*metadata, ("tracestate", state))
        return method(*args, metadata=metadata, **kwargs)

    return call

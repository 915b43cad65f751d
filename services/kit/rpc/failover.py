"""Calls to whichever of several servers is SERVING.

Health is followed on a stream of its own to each server, so that a switch-over is known as soon as
the next server says SERVING. Calls in flight end with the connection that they are on.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.kit.backoff import Backoff
from services.kit.broadcast import Broadcast
from services.kit.rpc.tracing_channel import TracedChannel
from services.kit.telemetry import logs

_log = logs.get("rpc.failover")

_KNOWN_S: Final = 1.0
"""Longest wait for the first word of all servers, s."""


class FailoverChannel(TracedChannel):
    """A channel to the first of several servers that serves.

    The one in use is kept while it serves. Where none does, calls go to the one used last.

    Attributes:
        begun: How many times one of them has begun to serve, as it changes.
    """

    def __init__(self, addresses: Sequence[str], channels: Sequence[TracedChannel]) -> None:
        """Use the first; enter the channel to follow their health.

        Args:
            addresses: Of the servers, for the log.
            channels: One to each.
        """
        super().__init__(self._used)
        self._addresses = addresses
        self._channels = channels
        self._serving: dict[int, bool] = {}
        self._heard = asyncio.Event()
        self.begun = Broadcast(0)
        self._now = 0
        self._watching: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for channel in self._channels:
            await channel.__aenter__()
        self._watching = [
            asyncio.create_task(self._watch(number), name=f"failover.{address}")
            for number, address in enumerate(self._addresses)
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(_KNOWN_S):
                await self._heard.wait()
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        for channel in self._channels:
            await channel.__aexit__()

    def _used(self) -> Any:
        return self._channels[self._now]

    async def _watch(self, number: int) -> None:
        """Follow the health of one server for ever."""
        channel: Any = self._channels[number]
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lag behind
        backoff = Backoff(maximum_s=0.5)
        while True:
            with suppress(grpc.aio.AioRpcError):
                async for answer in stub.Watch(health_pb2.HealthCheckRequest()):
                    backoff.reset()
                    self._hear(number, answer.status == health_pb2.HealthCheckResponse.SERVING)
            self._hear(number, serves=False)
            await asyncio.sleep(backoff.next_s())

    def _hear(self, number: int, serves: bool) -> None:
        begins = serves and not self._serving.get(number)
        self._serving[number] = serves
        first = next((each for each, good in sorted(self._serving.items()) if good), None)
        if first is not None or len(self._serving) == len(self._channels):
            self._heard.set()
        if first is not None and not self._serving.get(self._now):
            if first != self._now:
                _log.info("calls go to another server", address=self._addresses[first])
            self._now = first
        if begins:
            self.begun.publish(self.begun.value + 1)

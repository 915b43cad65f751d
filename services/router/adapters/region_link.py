"""The network to one peer region's router: its round trip, and whether it still answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc

from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.clock import Clock
from services.kit.telemetry import logs

_log = logs.get("regions")

DEAD_AFTER_S: Final = 2.0
"""Time within which a peer must answer where its round trip is not known, s."""

_PING_S: Final = 2.0
_PINGS: Final = 5
_QUIET_S: Final = 0.2
"""Time without any answer after which a peer with open calls is pinged, s."""

_LOOK_S: Final = 0.05
_ANSWER_S: Final = 0.25
_ROUND_TRIPS: Final = 4
"""A ping is late after `_ANSWER_S` and that many round trips."""


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call to a peer. Attributes: call; lost (the peer has fallen silent, and it was ended)."""

    call: Any
    lost: bool = False


class RegionLink:
    """Calls to the router of one peer region.

    A request of which nothing is heard for a moment is no sign: answers take their time. A ping
    that stays unanswered is one, and ends all open calls, so that they are answered at home.

    Args:
        region: The peer.
        channel: Leads to its router.
        clock: Time.

    Attributes:
        infer: Sends a request that has one answer.
        stream: Sends requests whose answers come in parts.
        round_trip_s: Least of the last round trips, s; None: it does not answer.
    """

    def __init__(self, region: str, channel: grpc.aio.Channel, clock: Clock) -> None:
        service = "/inference.GRPCInferenceService/"
        self.infer: Callable[..., Any] = channel.unary_unary(f"{service}ModelInfer")
        self.stream: Callable[..., Any] = channel.stream_stream(f"{service}ModelStreamInfer")
        self.round_trip_s: float | None = None
        self._stub: Any = GRPCInferenceServiceStub(channel)
        self._region, self._clock = region, clock
        self._pings: deque[float] = deque(maxlen=_PINGS)
        self._calls: set[OpenCall] = set()
        self._heard_s = 0.0

    @contextmanager
    def opened(self, call: Any) -> Iterator[OpenCall]:
        """Watch a call as long as it is open."""
        if not self._calls:
            self.heard()
        found = OpenCall(call)
        self._calls.add(found)
        try:
            yield found
        finally:
            self._calls.discard(found)

    def heard(self) -> None:
        """Note that the peer has answered just now."""
        self._heard_s = self._clock.monotonic()

    async def keep(self) -> None:
        """Measure the network for ever; end open calls as soon as the peer is silent."""
        while True:
            began_s = self._clock.monotonic()
            why = await self._ping()
            if why:
                self._lose(why)
            else:
                self.heard()
                self._pings.append(self._heard_s - began_s)
                self.round_trip_s = min(self._pings)
            await self._wait_for_next_ping()

    async def _ping(self) -> str:
        """Return "" once the peer has answered, or why it has not in time."""
        known_s = self.round_trip_s
        limit_s = DEAD_AFTER_S if known_s is None else _ANSWER_S + _ROUND_TRIPS * known_s
        call = self._stub.ServerLive(pb.ServerLiveRequest(), timeout=DEAD_AFTER_S)
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(_answered(call), name="router.regions.ping")
            await asyncio.wait({answer}, timeout=limit_s)
            await asyncio.sleep(0)  # this process may have stalled: what has come counts
            if answer.done():
                return answer.result()
            answer.cancel()
        return f"no answer in {limit_s:.3g} s"

    async def _wait_for_next_ping(self) -> None:
        until_s = self._clock.monotonic() + _PING_S
        while (now_s := self._clock.monotonic()) < until_s:
            if self._calls and now_s - self._heard_s >= _QUIET_S:
                return
            await asyncio.sleep(_LOOK_S)

    def _lose(self, why: str) -> None:
        """Bring all open calls home, and send nothing more until a ping is answered."""
        if self.round_trip_s is not None:
            open_calls = len(self._calls)
            _log.warning(
                "a peer region's router is away", region=self._region, why=why, open=open_calls
            )
        self.round_trip_s = None
        self._pings.clear()
        for each in self._calls:
            each.lost = True
            each.call.cancel()


async def _answered(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.details() or error.code().name
    return ""

"""Routers of peer regions: forwards requests to them, and measures the network between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import grpc

from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.records import Forward
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.clock import Clock
from services.kit.config import Deployment
from services.kit.errors import InvalidArgument
from services.kit.rpc import dial
from services.kit.rpc.client_identity import CLIENT_ID
from services.kit.rpc.record_mapping import from_message
from services.kit.telemetry import logs
from services.router.adapters.answer_check import WrongAnswer
from services.router.adapters.region_answer import checked
from services.router.core.accounting.receipts import Answer
from services.router.core.forwarding import Forwarding
from services.router.core.model import Request
from services.router.core.wire import Head, string_parameter

_log = logs.get("regions")

REGION: Final = "cinquefoil-region"
"""Metadata of a forwarded request: the region that it came from, and of its answer: where."""

_DEAD_AFTER_S: Final = 2.0
_PING_S: Final = 2.0
_PINGS: Final = 5
_REMOTE_PART: Final = 0.5
"""Of a request's time that a peer region has: the rest is for this one, should the peer fail."""

_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"

Forwards = Sequence[planner_pb2.Forward]


class RegionRouters:
    """Connections to the routers of peer regions.

    Args:
        deployment: The deployment.
        clock: Time.

    Attributes:
        forwarding: Decides which requests leave, and counts them.
        round_trip_s: Least of the last round trips, by region; missing: it does not answer.
    """

    def __init__(self, deployment: Deployment, clock: Clock) -> None:
        self._deployment, self._clock = deployment, clock
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._calls: dict[str, Callable[..., Any]] = {}
        self._pings: dict[str, deque[float]] = {}
        self.forwarding = Forwarding()
        self.round_trip_s: dict[str, float] = {}

    async def keep(self) -> None:
        """Measure the network to every peer, for ever."""
        settings = self._deployment.regions
        if settings is None:
            return
        tls, expected = (
            self._deployment.identity("region", settings.name),
            self._deployment.expected("router"),
        )
        async with AsyncExitStack() as stack:
            for name, peer in settings.peers.items():
                opened = dial(peer.router, tls, expected, dead_after_s=_DEAD_AFTER_S)
                channel = await stack.enter_async_context(opened)
                self._channels[name], self._calls[name] = channel, channel.unary_unary(_INFER)
            async with asyncio.TaskGroup() as tasks:
                for name in settings.peers:
                    tasks.create_task(self._measure(name), name=f"router.regions.{name}")

    async def _measure(self, region: str) -> None:
        stub: Any = GRPCInferenceServiceStub(self._channels[region])
        pings = self._pings[region] = deque(maxlen=_PINGS)
        while True:
            began_s = self._clock.monotonic()
            try:
                await stub.ServerLive(pb.ServerLiveRequest(), timeout=_DEAD_AFTER_S)
            except grpc.aio.AioRpcError as error:
                if self.round_trip_s.pop(region, None) is not None:
                    _log.warning(
                        "a peer region's router is away", region=region, why=error.details()
                    )
                pings.clear()
            else:
                pings.append(self._clock.monotonic() - began_s)
                self.round_trip_s[region] = min(pings)
            await asyncio.sleep(_PING_S)

    def use(self, forwards: Forwards) -> None:
        """Use new rates of the planner's."""
        self.forwarding.use(
            [
                from_message(each, Forward)
                for each in forwards
                if each.region in self._calls and 0 <= each.rate_rps <= 1e9
            ],
            self._clock.monotonic(),
        )

    async def forward(
        self, head: Head, body: bytes, remaining_s: float, client: Callable[[], str] | None
    ) -> Answer | None:
        """Return a peer region's answer; None: this region answers.

        Raises:
            InvalidArgument: The peer refuses the request as malformed, as this region would.
        """
        now_s, model = self._clock.monotonic(), head.model_name
        region = self.forwarding.choose(model, now_s)
        if not region or region not in self.round_trip_s:
            return None
        metadata = [(REGION, self._name)]
        if client is not None:
            metadata.append((CLIENT_ID, client().removeprefix("id:")))
        request = Request(0, model, body, now_s, now_s + remaining_s, id=head.id)
        call = self._calls[region](body, timeout=remaining_s * _REMOTE_PART, metadata=metadata)
        try:
            answer = await call
            took_s = self._clock.monotonic() - now_s
            kept = checked(answer, await call.trailing_metadata(), request, took_s)
        except WrongAnswer as error:
            _log.warning("a peer region's answer cannot be", region=region, why=str(error))
            self._give_up(region, model)
            return None
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise InvalidArgument(error.details() or "refused by a peer region") from None
            self._give_up(region, model)
            return None
        self.forwarding.sent[region, model] += 1
        return Answer(answer + string_parameter("region", region), (*kept, (REGION, region)))

    def _give_up(self, region: str, model: str) -> None:
        """Note that a peer has not answered: this region does, and the peer rests."""
        self.forwarding.returned[region, model] += 1
        self.forwarding.suspend(region, self._clock.monotonic())

    @property
    def _name(self) -> str:
        settings = self._deployment.regions
        return "" if settings is None else settings.name

    def received(self, region: str, model: str) -> None:
        """Count a request that came from a peer."""
        settings = self._deployment.regions
        if settings is not None and region in settings.peers:
            self.forwarding.received[region, model] += 1

    def fill(self, report: planner_pb2.ReportLoadRequest) -> None:
        """Add what went between regions since the last report."""
        counts = self.forwarding
        for region, model in {**counts.sent, **counts.received, **counts.returned}:
            key = region, model
            report.region_loads.add(
                region=region,
                model=model,
                sent=counts.sent[key],
                received=counts.received[key],
                returned=counts.returned[key],
            )
        for each in (counts.sent, counts.received, counts.returned):
            each.clear()
        for region, round_trip_s in self.round_trip_s.items():
            report.region_links.add(region=region, round_trip_s=round_trip_s)

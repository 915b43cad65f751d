"""Routers of peer regions: forwards requests to them, and measures the network between."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

import grpc

from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.records import Forward
from services.kit.clock import Clock
from services.kit.config import Deployment
from services.kit.errors import InvalidArgument, Unavailable
from services.kit.rpc import dial
from services.kit.rpc.client_identity import CLIENT_ID
from services.kit.rpc.record_mapping import from_message
from services.kit.telemetry import logs
from services.router.adapters.answer_check import WrongAnswer
from services.router.adapters.region_answer import StreamedAnswer, checked
from services.router.adapters.region_link import DEAD_AFTER_S, OpenCall, RegionLink
from services.router.core.accounting.exchanged import Exchanged
from services.router.core.accounting.receipts import Answer
from services.router.core.forwarding import Forwarding, Outgoing
from services.router.core.model import Request, ResponseReceiver
from services.router.core.wire import bool_parameter, string_parameter

_log = logs.get("regions")

REGION: Final = "cinquefoil-region"
"""Metadata of a forwarded request: the region that it came from, and of its answer: where."""

_REMOTE_PART: Final = 0.5
"""Of a request's time that a peer region has: the rest is for this one, should the peer fail."""

_MAX_RPS: Final = 1e9

_EMPTY_FINAL: Final = bool_parameter("triton_enable_empty_final_response", value=True)

Forwards = Sequence[planner_pb2.Forward]


class _Errand(NamedTuple):
    """A request on its way. Attributes: link, request, metadata."""

    link: RegionLink
    request: Request
    metadata: list[tuple[str, str]]


class RegionRouters:
    """Connections to the routers of peer regions.

    Args:
        deployment: The deployment.
        clock: Time.

    Attributes:
        forwarding: Decides which requests leave.
    """

    def __init__(self, deployment: Deployment, clock: Clock) -> None:
        self._deployment, self._clock = deployment, clock
        self._links: dict[str, RegionLink] = {}
        self._exchanged = defaultdict[tuple[str, str], Exchanged](Exchanged)
        self.forwarding = Forwarding()

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
                opened = dial(peer.router, tls, expected, dead_after_s=DEAD_AFTER_S)
                channel = await stack.enter_async_context(opened)
                self._links[name] = RegionLink(name, channel, self._clock)
            async with asyncio.TaskGroup() as tasks:
                for name, link in self._links.items():
                    tasks.create_task(link.keep(), name=f"router.regions.{name}")

    @property
    def reached(self) -> set[str]:
        """Peer regions whose router answers."""
        return {name for name, link in self._links.items() if link.round_trip_s is not None}

    def use(self, forwards: Forwards) -> None:
        """Use new rates of the planner's."""
        self.forwarding.use(
            [
                from_message(each, Forward)
                for each in forwards
                if each.region in self._links
                and 0 <= each.rate_rps <= _MAX_RPS
                and 0 <= each.waiting_rps <= _MAX_RPS
            ],
            self._clock.monotonic(),
        )

    async def forward(self, outgoing: Outgoing) -> Answer | None:
        """Return a peer region's answer; None: this region answers.

        Raises:
            InvalidArgument: The peer refuses the request as malformed, as this region would.
            Unavailable: The peer failed after parts of its answer had left.
        """
        head, receiver, client = outgoing.head, outgoing.receiver, outgoing.client
        now_s, model = self._clock.monotonic(), head.model_name
        blocks = outgoing.prefix() if outgoing.prefix else ()
        if outgoing.can_wait:
            region = self.forwarding.choose_for_waiting(model, now_s, self.reached)
        else:
            region = self.forwarding.choose(model, now_s, self.reached, blocks)
        self.forwarding.conversations.keep(model, blocks, region)
        if not region:
            return None
        metadata = [(REGION, self._name)]
        if client is not None:
            metadata.append((CLIENT_ID, client().removeprefix("id:")))
        until_s = now_s + outgoing.remaining_s
        request = Request(0, model, outgoing.body, now_s, until_s, id=head.id)
        errand = _Errand(self._links[region], request, metadata)
        try:
            if receiver is None:
                answer = await self._whole(errand)
            else:
                answer = await self._parts(errand, receiver)
        except WrongAnswer as error:
            _log.warning("a peer region's answer cannot be", region=region, why=str(error))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise InvalidArgument(error.details() or "refused by a peer region") from None
        except _Silent:
            pass
        else:
            exchanged = self._exchanged[region, model]
            exchanged.sent.add(answer)
            exchanged.sent_waiting += outgoing.can_wait
            named = answer.body + string_parameter("region", region)
            return Answer(named, (*answer.trailers, (REGION, region)))
        self.forwarding.conversations.keep(model, blocks, "")
        self._exchanged[region, model].returned += 1
        self.forwarding.suspend(region, self._clock.monotonic())
        return None

    async def _whole(self, errand: _Errand) -> Answer:
        """Return the only answer of a request."""
        link, request = errand.link, errand.request
        limit_s = (request.deadline_s - request.arrived_s) * _REMOTE_PART
        call = link.infer(request.body, timeout=limit_s, metadata=errand.metadata)
        with link.opened(call) as opened:
            try:
                answer, trailers = await call, await call.trailing_metadata()
            except asyncio.CancelledError:
                raise _Silent.instead(opened) from None
        link.heard()
        took_s = self._clock.monotonic() - request.arrived_s
        return Answer(answer, checked(answer, trailers, request, took_s))

    async def _parts(self, errand: _Errand, receiver: ResponseReceiver) -> Answer:
        """Return the last part of an answer, the others having gone to its receiver."""
        link, request = errand.link, errand.request
        limit_s = request.deadline_s - request.arrived_s
        call = link.stream(
            _once(request.body + _EMPTY_FINAL), timeout=limit_s, metadata=errand.metadata
        )
        found = StreamedAnswer(request, receiver)
        with link.opened(call) as opened:
            try:
                async for part in call:
                    link.heard()
                    found.take(part, self._clock.monotonic() - request.arrived_s)
                return found.answer()
            except asyncio.CancelledError:
                error: Exception = _Silent.instead(opened)
            except (WrongAnswer, grpc.aio.AioRpcError) as failure:
                error = failure
            finally:
                call.cancel()
        if found.begun:
            why = "a peer region failed in the middle of its answer"
            raise Unavailable(why, reason="REGION_LOST") from error
        raise error

    def may_leave(self) -> dict[str, int]:
        """Return how many requests that can wait may leave now, by model."""
        now_s, reached = self._clock.monotonic(), self.reached
        return {
            model: self.forwarding.may_leave(model, now_s, reached)
            for model in self.forwarding.models_that_wait
        }

    @property
    def _name(self) -> str:
        settings = self._deployment.regions
        return "" if settings is None else settings.name

    def received(self, region: str, model: str) -> None:
        """Count a request that came from a peer."""
        if region in self._links:
            self._exchanged[region, model].received += 1

    def answered(self, region: str, model: str, answer: Answer) -> None:
        """Count an answer to a peer's request."""
        if region in self._links:
            self._exchanged[region, model].answered.add(answer)

    def fill(self, report: planner_pb2.ReportLoadRequest) -> None:
        """Add what went between regions since the last report."""
        for (region, model), each in self._exchanged.items():
            report.region_loads.add(
                region=region,
                model=model,
                sent=each.sent.requests,
                received=each.received,
                returned=each.returned,
                answered=each.answered.requests,
                answered_j=each.answered.energy_j,
                answered_gco2e=each.answered.carbon_gco2e,
                sent_j=each.sent.energy_j,
                sent_gco2e=each.sent.carbon_gco2e,
                sent_waiting=each.sent_waiting,
            )
        self._exchanged.clear()
        for region, link in self._links.items():
            if link.round_trip_s is not None:
                report.region_links.add(region=region, round_trip_s=link.round_trip_s)


class _Silent(Exception):
    """A peer has fallen silent."""

    @classmethod
    def instead(cls, opened: OpenCall) -> Exception:
        """Return this error for a call that was ended for it.

        Raises:
            CancelledError: The caller has gone.
        """
        task = asyncio.current_task()
        if not opened.lost or (task is not None and task.cancelling()):
            raise asyncio.CancelledError
        return cls()


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body

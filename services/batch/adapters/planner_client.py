"""The planner's client: reports what waits, receives what may run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import grpc

from cinquefoil.planner.v1 import waiting_pb2 as pb
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from cinquefoil.planner.v1.records import WaitingModel, WaitingRelease
from services.kit.backoff import Backoff
from services.kit.clock import Clock
from services.kit.rpc.reconnect import Reconnector
from services.kit.rpc.record_mapping import from_message, to_message

_MOST_S: Final = 1.0
"""Longest time between two attempts to reach a planner, s: another may lead by then."""

_INTERVAL_S: Final = 5.0
"""Longest time between two reports, s."""

_MOST_RELEASES: Final = 4096


@dataclass(frozen=True, slots=True)
class Exchange:
    """Both directions of the exchange with the planner.

    Attributes:
        name: Name of this process.
        waiting: Returns everything that waits, by model.
        changed: Set when a report is due at once.
        hear: Takes what may run, and the number of batch services.
    """

    name: str
    waiting: Callable[[], Iterable[WaitingModel]]
    changed: asyncio.Event
    hear: Callable[[Iterable[WaitingRelease], int], None]


async def exchange(channel: grpc.aio.Channel, its: Exchange, clock: Clock) -> None:
    """Report what waits and take what may run, until cancelled.

    Args:
        channel: Channel to the planner.
        its: What is exchanged.
        clock: Time.
    """
    planner = Reconnector(
        "planner: waiting work", clock, backoff=Backoff(maximum_s=_MOST_S), channel=channel
    )

    async def reports() -> AsyncIterator[pb.ReportWaitingRequest]:
        while True:
            its.changed.clear()
            models = [to_message(each, pb.WaitingModel) for each in its.waiting()]
            yield pb.ReportWaitingRequest(batch_id=its.name, models=models)
            with suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL_S):
                    await its.changed.wait()

    async def session() -> None:
        async for response in PlannerServiceStub(channel).ReportWaiting(reports()):
            planner.connected()
            found = response.releases[:_MOST_RELEASES]
            releases = [from_message(each, WaitingRelease) for each in found]
            its.hear(releases, response.batch_services)

    await planner.run(session)

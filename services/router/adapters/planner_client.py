"""The planner, seen from here: routing tables come, load reports go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from cinquefoil.planner.v1 import planner_pb2 as pb
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit.clock import Clock
from services.router.adapters.convert import to_table
from services.router.adapters.reconnect import Peer
from services.router.core.model import RoutingTable


async def watch_routes(
    channel: grpc.aio.Channel, use: Callable[[RoutingTable], None], clock: Clock
) -> None:
    """Follow the routing table until cancelled; while the planner is away, the last one holds."""
    peer = Peer("planner: routes", clock)
    while True:
        try:
            async for response in PlannerServiceStub(channel).Watch(pb.WatchRequest()):
                peer.here()
                if response.routing.revision > 0:
                    use(to_table(response.routing))
        except grpc.aio.AioRpcError as error:
            peer.lost_call(error)
        await peer.before_retry()


async def report_load(
    channel: grpc.aio.Channel,
    report: Callable[[], pb.ReportLoadRequest],
    changed: asyncio.Event,
    interval_s: float,
    clock: Clock,
) -> None:
    """Report load until cancelled.

    Args:
        channel: To the planner.
        report: Makes a report, and begins the next window.
        changed: Set when there is something to report at once: a new routing table in use.
        interval_s: Longest time between reports, s.
        clock: Time.
    """
    peer = Peer("planner: load", clock)
    while True:
        call = PlannerServiceStub(channel).ReportLoad()
        try:
            report()  # what nobody could be told is history, not load
            while True:
                changed.clear()
                await call.write(report())
                peer.here()
                await _either(changed, interval_s)
        except grpc.aio.AioRpcError as error:
            peer.lost_call(error)
        except asyncio.InvalidStateError:
            peer.lost("it ended the stream")
        finally:
            call.cancel()
        await peer.before_retry()


async def _either(changed: asyncio.Event, interval_s: float) -> None:
    """Wait for `changed` or for `interval_s`."""
    try:
        async with asyncio.timeout(interval_s):
            await changed.wait()
    except TimeoutError:
        return

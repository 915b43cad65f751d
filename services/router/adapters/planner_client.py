"""The planner's client: receives routing tables, reports load."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import grpc
from prometheus_client import Gauge

from cinquefoil.planner.v1 import planner_pb2 as pb
from cinquefoil.planner.v1.plan_pb2 import PLAN_STATE_PROPOSED, PLAN_STATE_ROLLING
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit.backoff import Backoff
from services.kit.clock import Clock
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.rpc.condition_messages import conditions_from
from services.kit.rpc.reconnect import ConnectionLost, Reconnector
from services.kit.telemetry import logs
from services.router.adapters.convert import changed_table, to_releases, to_table
from services.router.core.deferrable.release import ReleasePlan
from services.router.core.model import RoutingTable
from services.router.core.readiness import Readiness

_ROLLING_OUT = (PLAN_STATE_PROPOSED, PLAN_STATE_ROLLING)

_log = logs.get("config")

ROUTES_AGE = Gauge(
    "cinquefoil_routes_age_seconds",
    "Time for which the planner, whose last routes are in use, is away; 0: it is connected.",
)

MOST_S = 1.0
"""Longest time between two attempts to reach a planner, s: another may lead by then."""


class Heard(NamedTuple):
    """Takers of what a planner says beside the routing table.

    Attributes:
        note: Takes the reasons for which models may have no instance.
        release: Takes how many requests that can wait may begin, by model.
        forward: Takes what may go to peer regions.
    """

    note: Callable[[Readiness], None]
    release: Callable[[Mapping[str, ReleasePlan]], None]
    forward: Callable[[Sequence[pb.Forward]], None]


UseTable = Callable[[RoutingTable, bool], None]
"""Takes a routing table, and whether the planner has a plan."""


@dataclass(slots=True)
class ConfigDigests:
    """Digests of deployment files.

    Attributes:
        own: Of this process's; "": it was not read from a file.
        planner: Of the planner's, as last heard.
    """

    own: str
    planner: str = ""

    def hear(self, planner: str) -> None:
        """Record the planner's digest; log it if it changed and differs from our own."""
        if planner not in ("", self.planner, self.own) and self.own:
            _log.warning(
                "the planner has another deployment file", planner=planner, router=self.own
            )
        self.planner = planner


async def watch_routes(
    channel: grpc.aio.Channel,
    use: UseTable,
    hear: Heard,
    config: ConfigDigests,
    clock: Clock,
) -> None:
    """Follow the planner until cancelled; while it is away, its last table stays in use.

    Args:
        channel: Channel to the planner.
        use: Takes each routing table, and whether the planner has ever planned.
        hear: Takes what else it says.
        config: Hears the digest of the planner's file.
        clock: Time.
    """
    planner = Reconnector(
        "planner: routes",
        clock,
        backoff=Backoff(maximum_s=MOST_S),
        errors=(grpc.aio.AioRpcError, FailedPrecondition, InvalidArgument),
        channel=channel,
    )

    away_s: float | None = clock.monotonic()  # since then; None: connected
    ROUTES_AGE.set_function(lambda: 0.0 if away_s is None else clock.monotonic() - away_s)

    async def session() -> None:
        nonlocal away_s
        try:
            await follow()
        finally:
            away_s = clock.monotonic() if away_s is None else away_s

    async def follow() -> None:
        nonlocal away_s
        table: RoutingTable | None = None
        request = pb.WatchRequest(routing_only=True)
        async for response in PlannerServiceStub(channel).Watch(request):
            planner.connected()
            away_s = None
            rolling_out = response.plan.state in _ROLLING_OUT
            hear.note(Readiness(conditions_from(response.conditions), rolling_out))
            config.hear(response.config_digest)
            if response.releases_changed:
                since_s = clock.now().timestamp() - clock.monotonic()
                hear.release(to_releases(response.releases, since_s))
            if response.forwards_changed:
                hear.forward(response.forwards)
            if response.HasField("routing_change") and table is not None:
                table = changed_table(table, response.routing_change)
                use(table, response.HasField("plan"))
            elif response.HasField("routing"):
                table = to_table(response.routing)
                if table.revision > 0:
                    use(table, response.HasField("plan"))

    await planner.run(session)


async def report_load(
    channel: grpc.aio.Channel,
    report: Callable[[], pb.ReportLoadRequest],
    changed: asyncio.Event,
    interval_s: float,
    clock: Clock,
) -> None:
    """Report load until cancelled.

    Args:
        channel: Channel to the planner.
        report: Makes a report, and begins the next window.
        changed: Set when a report is due at once: a new routing table is in use, or a worker
            cannot be reached any more.
        interval_s: Longest time between reports, s.
        clock: Time.
    """
    planner = Reconnector(
        "planner: load", clock, backoff=Backoff(maximum_s=MOST_S), channel=channel
    )

    async def session() -> None:
        call = PlannerServiceStub(channel).ReportLoad()
        try:
            report()  # what could not be reported is history, not load
            while True:
                changed.clear()
                await call.write(report())
                planner.connected()
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):  # wait_for may lose a cancellation
                        await changed.wait()
        except asyncio.InvalidStateError:
            raise ConnectionLost("the planner ended the stream") from None
        finally:
            call.cancel()

    await planner.run(session)

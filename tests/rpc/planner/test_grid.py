"""The planner follows a real carbon service: present and future, through its restarts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from services.carbon.app import run
from services.kit.clock import RealClock
from services.kit.config import Horizon
from services.kit.net import free_port
from services.kit.rpc import dial
from services.planner.adapters import carbon_client
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.model import Period

if TYPE_CHECKING:
    from services.kit.config import Deployment
    from tests.conftest import Deploy

HALF_HOURS_PER_S = 1
ZONES = frozenset({"CAL", "US-CAL"})
CARBON: dict[str, Any] = {
    "zones": {"CAL": {"source": {"kind": "synthetic", "seed": 3}}},
    "replay": {"start": datetime(2022, 4, 8, tzinfo=UTC), "speedup": HALF_HOURS_PER_S * 1800},
}


class Recorder:
    """Keeps the updates that it gets, in order; `heard` is set with every intensity."""

    def __init__(self) -> None:
        self.updates: list[dict[str, float] | tuple[Period, ...]] = []
        self.heard = asyncio.Event()

    def update_intensity(
        self,
        intensity_gco2e_per_kwh: dict[str, float],
        staleness_s: dict[str, float],
        provenance: dict[str, str],
    ) -> None:
        self.updates.append(intensity_gco2e_per_kwh)
        self.heard.set()

    def lose_carbon(self) -> None:
        """The service went away."""

    def update_forecast(self, periods: tuple[Period, ...]) -> None:
        self.updates.append(periods)

    async def news(self) -> None:
        self.heard.clear()
        async with asyncio.timeout(20):
            await self.heard.wait()


async def following(deployment: Deployment, horizon: Horizon, recorder: Recorder) -> None:
    async with dial(deployment.carbon.dial) as channel:
        await carbon_client.follow(
            CarbonServiceStub(channel), ZONES, horizon, cast(ClusterState, recorder), RealClock()
        )


async def test_forecasts_come_before_the_intensities_that_make_it_plan(deployment: Deploy) -> None:
    """A plan that a new intensity causes sees the forecast that came with it."""
    settings = deployment({"carbon": CARBON | {"listen": f"127.0.0.1:{free_port()}"}})
    recorder, stop = Recorder(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run(settings, stop), name="carbon")
        follower = tasks.create_task(
            following(settings, Horizon(length_s=6 * 3600.0), recorder), name="follower"
        )
        for _ in range(3):
            await recorder.news()
        follower.cancel()
        stop.set()

    # Not compared by value: a forecast that a busy machine computes late begins a half hour later.
    assert [type(each) for each in recorder.updates[:4]] == [tuple, dict, tuple, dict]
    first = recorder.updates[0]
    assert isinstance(first, tuple)
    assert len(first) == 6
    assert first[0].intensity_gco2e_per_kwh.keys() == ZONES
    assert {each.length_s for each in first} == {3600.0}


async def test_without_a_horizon_nothing_is_foreseen(deployment: Deploy) -> None:
    settings = deployment({"carbon": CARBON | {"listen": f"127.0.0.1:{free_port()}"}})
    recorder, stop = Recorder(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run(settings, stop), name="carbon")
        follower = tasks.create_task(following(settings, Horizon(), recorder), name="follower")
        await recorder.news()
        await recorder.news()
        follower.cancel()
        stop.set()

    assert all(isinstance(each, dict) for each in recorder.updates)


async def test_after_a_restart_of_the_carbon_service_it_goes_on(deployment: Deploy) -> None:
    settings = deployment({"carbon": CARBON | {"listen": f"127.0.0.1:{free_port()}"}})
    recorder = Recorder()
    async with asyncio.TaskGroup() as tasks:
        follower = tasks.create_task(following(settings, Horizon(), recorder), name="follower")
        for _ in range(2):
            stop = asyncio.Event()
            service = tasks.create_task(run(settings, stop), name="carbon")
            await recorder.news()
            stop.set()
            with suppress(asyncio.CancelledError):
                await service
        follower.cancel()

    assert [set(each) for each in recorder.updates if len(each) == 2] == [ZONES, ZONES]


async def test_what_cannot_be_is_left_out() -> None:
    """An impossible figure of a zone, or a zone that the planner has not, changes no other's."""

    class Liar:
        @staticmethod
        async def Watch(_: carbon_pb2.WatchRequest) -> AsyncIterator[carbon_pb2.WatchResponse]:
            found = carbon_pb2.WatchResponse()
            found.intensities.add(zone="CAL", intensity_gco2e_per_kwh=math.nan)
            found.intensities.add(zone="FR", intensity_gco2e_per_kwh=50.0)
            found.intensities.add(zone="US-CAL", intensity_gco2e_per_kwh=200.0)
            yield found
            await asyncio.Event().wait()

    recorder = Recorder()
    following = carbon_client.follow(
        cast("Any", Liar), ZONES, Horizon(), cast("ClusterState", recorder), RealClock()
    )
    task = asyncio.create_task(following)
    await recorder.heard.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task

    assert recorder.updates == [{"US-CAL": 200.0}]

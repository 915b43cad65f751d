"""The planner follows a real carbon service: present and future, through its restarts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
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
from services.planner.change_event import ChangeEvent
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.model import Period
from services.planner.core.waiting.grid_outlook import OUTLOOK_S

if TYPE_CHECKING:
    from services.kit.config import Deployment
    from tests.conftest import Deploy

HALF_HOURS_PER_S = 1
ZONES = frozenset({"CAL", "US-CAL"})
CARBON: dict[str, Any] = {
    "zones": {"CAL": {"source": {"kind": "synthetic", "seed": 3}}},
    "replay": {"start": datetime(2022, 4, 8, tzinfo=UTC), "speedup": HALF_HOURS_PER_S * 1800},
}


class Recorder(ClusterState):
    """The planner's state, with its updates in order; `heard` is set with every intensity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.updates: list[Mapping[str, float] | tuple[Period, ...]] = []
        self.heard = asyncio.Event()

    def update_intensity(
        self,
        intensity_gco2e_per_kwh: Mapping[str, float],
        staleness_s: Mapping[str, float] | None = None,
        provenance: Mapping[str, str] | None = None,
    ) -> None:
        super().update_intensity(intensity_gco2e_per_kwh, staleness_s, provenance)
        self.updates.append(intensity_gco2e_per_kwh)
        self.heard.set()

    def update_forecast(self, periods: tuple[Period, ...]) -> None:
        super().update_forecast(periods)
        self.updates.append(periods)

    async def news(self) -> None:
        self.heard.clear()
        async with asyncio.timeout(45):
            await self.heard.wait()


def recording(deployment: Deployment) -> Recorder:
    return cast("Recorder", Recorder.of(deployment, (), RealClock(), ChangeEvent()))


async def following(deployment: Deployment, horizon: Horizon, recorder: Recorder) -> None:
    async with dial(deployment.carbon.dial) as channel:
        await carbon_client.follow(
            CarbonServiceStub(channel), ZONES, horizon, recorder, RealClock()
        )


async def test_forecasts_come_before_the_intensities_that_make_it_plan(deployment: Deploy) -> None:
    """A plan that a new intensity causes sees the forecast that came with it."""
    settings = deployment({"carbon": CARBON | {"listen": f"127.0.0.1:{free_port()}"}})
    recorder, stop = recording(settings), asyncio.Event()
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
    recorder, stop = recording(settings), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run(settings, stop), name="carbon")
        follower = tasks.create_task(following(settings, Horizon(), recorder), name="follower")
        await recorder.news()
        await recorder.news()
        follower.cancel()
        stop.set()

    assert all(isinstance(each, dict) for each in recorder.updates)
    assert not recorder.grid.steps


async def test_after_a_restart_of_the_carbon_service_it_goes_on(deployment: Deploy) -> None:
    """Its hours for waiting work are new again as well, though plans have no horizon."""
    carbon = CARBON | {"listen": f"127.0.0.1:{free_port()}"}
    settings = deployment({"carbon": carbon, "batch": {"listen": "127.0.0.1:0"}})
    recorder = recording(settings)
    async with asyncio.TaskGroup() as tasks:
        follower = tasks.create_task(following(settings, Horizon(), recorder), name="follower")
        for _ in range(2):
            stop = asyncio.Event()
            service = tasks.create_task(run(settings, stop), name="carbon")
            before = recorder.grid.steps.get("CAL")
            while recorder.grid.steps.get("CAL") is before:
                await recorder.news()
            grid_s = recorder.grid.now_s(recorder.clock.monotonic(), math.inf)
            assert recorder.grid.mean(dict.fromkeys(ZONES, 0.5), grid_s, grid_s + OUTLOOK_S / 2)
            stop.set()
            with suppress(asyncio.CancelledError):
                await service
        follower.cancel()

    heard = [set(each) for each in recorder.updates if isinstance(each, dict)]
    assert len(heard) >= 2
    assert all(each == ZONES for each in heard)


async def test_what_cannot_be_is_left_out(deployment: Deploy) -> None:
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

    recorder = recording(deployment({}))
    following = carbon_client.follow(cast("Any", Liar), ZONES, Horizon(), recorder, RealClock())
    task = asyncio.create_task(following)
    await recorder.heard.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task

    assert recorder.updates == [{"US-CAL": 200.0}]
    assert recorder.intensity_gco2e_per_kwh == {"US-CAL": 200.0}

"""The planner's rule, the batch service's gate and a model that attains less than was promised."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from cinquefoil.planner.v1.records import WaitingBucket, WaitingModel
from services.batch.adapters.router_client import Answer
from services.batch.core.admission import Admission
from services.batch.core.releases import Releases
from services.batch.runtime.gate import Gate
from services.kit.config import Objective
from services.planner.change_event import ChangeEvent
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.waiting_work import WaitingWork
from services.planner.core.decide import Snapshot
from services.planner.core.fleet import Fleet
from services.planner.core.forecast.demand import Demand
from services.planner.core.forecast.forecast_periods import Step
from services.planner.core.model import Variant
from services.planner.core.service_level import ServiceLevel
from tests.support.planner.decisions import MODEL, analytic, decided, done, snapshot
from tests.support.virtual_loop import LoopClock, run

HOUR_S, DAY_H, FIRST_S = 3600.0, 24, 60.0
CLEAN_H = range(19, 24)
"""The cleanest hours are the last before the deadline: what is not done then is late."""


class State(ClusterState):
    """A cluster that stays as it is, on a grid that is clean in some hours."""

    def snapshot(self, shares: Mapping[str, float]) -> Snapshot:  # noqa: ARG002
        grid_s = self.grid.now_s(self.clock.monotonic(), 0.0)
        self.intensity_gco2e_per_kwh["Z"] = gco2e_per_kwh(int(grid_s // HOUR_S))
        return replace(cluster(self.grid.speedup), models=self.models)


def gco2e_per_kwh(hour: int) -> float:
    return 40.0 if hour % DAY_H in CLEAN_H else 400.0


def cluster(speedup: float) -> Snapshot:
    """One GPU, on which a model answers the slower the longer the day is."""
    slow = Variant("small", 90.0, analytic(2e3 if speedup == 1 else 20.0))
    model = replace(MODEL, slo_latency_s=60.0, demand_rps=0.1, variants=(slow,))
    before = replace(snapshot(gpus=1), models=(model,))
    return done(before, decided(before))


def planner(clock: LoopClock, speedup: float) -> WaitingWork:
    """A planner that knows the grid's hours, and nothing of what rooms attain."""
    now = cluster(speedup)
    demand, level = Demand({}, now_s=clock.monotonic), ServiceLevel({})
    fleet = Fleet({}, 0.0)
    state = State(clock, ChangeEvent(), now.models, fleet, demand, level, Objective(), "x")
    state.grid.speedup = speedup
    start_s = clock.now().timestamp()
    state.grid.hear(start_s, clock.monotonic())
    first = int(start_s // HOUR_S)
    state.grid.steps["Z"] = tuple(
        Step(start_s + HOUR_S * hour, gco2e_per_kwh(first + hour)) for hour in range(120)
    )
    return WaitingWork(state, dict)


@dataclass
class Room:
    """A model that answers so many requests a second; stands for router and worker.

    Attributes:
        gate: The gate that its requests come through.
        rate_rps: Its rate.
        answered: When each was answered, s.
    """

    gate: Gate
    rate_rps: float
    answered: list[float] = field(default_factory=list)
    lost: bool = False
    queue: deque[float] = field(default_factory=deque)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self.queue:
                self.came.clear()
                await self.came.wait()
            sent_s, began_s = self.queue.popleft(), loop.time()
            await asyncio.sleep(1 / self.rate_rps)
            self.answered.append(loop.time())
            self.gate.leave(Answer(0, 200, b"", None, began_s - sent_s), loop.time() - sent_s)


Trouble = Callable[[WaitingWork, Room], WaitingWork]
"""Trouble that begins at 8 and ends at 14 o'clock; returns the planner that leads from then on."""


def nothing(plans: WaitingWork, room: Room) -> WaitingWork:
    return plans


def grid_outage(plans: WaitingWork, room: Room) -> WaitingWork:
    """Forecasts end, or come back."""
    steps = planner(LoopClock(), plans.state.grid.speedup).state.grid.steps
    plans.state.grid.steps = {} if plans.state.grid.steps else steps
    return plans


def lost_replica(plans: WaitingWork, room: Room) -> WaitingWork:
    """Half of the room is lost, or comes back."""
    room.rate_rps *= 0.5 if not room.lost else 2.0
    room.lost = not room.lost
    return plans


def switch_over(plans: WaitingWork, room: Room) -> WaitingWork:
    """Another planner leads, which has what the store keeps."""
    follower = planner(LoopClock(), plans.state.grid.speedup)
    follower.state.grid = plans.state.grid
    follower.memory.update(plans.memory)
    follower.attained.update(plans.attained)
    return follower


async def day(
    part: float, share: float, speedup: float, report_s: float, trouble: Trouble = nothing
) -> tuple[float, float]:
    """Give a batch with a window of 24 hours at midnight.

    Args:
        part: Part of the promised room that the model attains.
        share: Lines, of what is attained in the whole day.
        speedup: Grid seconds per second.
        report_s: Time between two reports of the batch service after the first minute, s.
        trouble: Trouble of the day.

    Returns:
        When the last line was answered, in hours of grid time, and the part of them that ran in
        clean hours.
    """
    clock, loop, length_s = LoopClock(), asyncio.get_running_loop(), DAY_H * HOUR_S / speedup
    plans, releases = planner(clock, speedup), Releases()
    plans.update()
    promised_rps = plans._offered["digits"]
    gate = Gate("digits", Admission(1024), releases, clock)
    room = Room(gate, part * promised_rps)
    total = math.floor(share * room.rate_rps * length_s)
    due = clock.now() + timedelta(hours=DAY_H)

    async def send() -> None:
        left = total
        while left:
            sent = await gate.enter(min(left, 64), due, lambda: False)
            room.queue.extend([loop.time()] * sent)
            room.came.set()
            left -= sent

    async with asyncio.timeout(4 * length_s), asyncio.TaskGroup() as tasks:
        chores = [tasks.create_task(room.serve()), tasks.create_task(send())]
        troubles_h = [14, 8]
        while len(room.answered) < total:
            if troubles_h and loop.time() * speedup / HOUR_S >= troubles_h[-1]:
                plans = trouble(plans, room)
                troubles_h.pop()
            bucket = WaitingBucket(
                due=due, requests=total - len(room.answered), window=timedelta(hours=DAY_H)
            )
            waiting = WaitingModel(model="digits", buckets=(bucket,), answered=len(room.answered))
            plans.report([waiting], "b-1")
            releases.hear(plans.update(), 1)
            await asyncio.sleep(5.0 if loop.time() < FIRST_S else report_s)
        for each in chores:
            each.cancel()
    hours = [at_s * speedup / HOUR_S for at_s in room.answered]
    return hours[-1], sum(int(each) in CLEAN_H for each in hours) / total


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_every_line_is_in_time_although_three_tenths_of_the_room_are_attained(share: float) -> None:
    """The clean hours are the last ones, and too short: what they hold is measured before."""
    last_h, _ = run(day(0.3, share, 360.0, 5.0))

    assert last_h <= DAY_H


@pytest.mark.parametrize("trouble", [grid_outage, lost_replica, switch_over])
def test_none_is_late_through(trouble: Trouble) -> None:
    """The clean hours alone are too short: the work takes seven tenths of the day."""
    last_h, _ = run(day(0.3, 0.7, 360.0, 5.0, trouble))

    assert last_h <= DAY_H


def test_under_replay_the_room_is_measured_for_a_moment_and_the_rest_waits() -> None:
    """Hours of ten seconds, reports at their ends: so the room was measured until all was done."""
    last_h, clean = run(day(0.3, 0.1, 360.0, 5.0))

    assert last_h <= DAY_H
    assert clean > 0.75


def test_in_real_time_what_fits_the_clean_hours_runs_in_them_and_all_is_in_time() -> None:
    """A seventh of the attained room."""
    last_h, clean = run(day(0.3, 0.1, 1.0, 3600.0))

    assert last_h <= DAY_H
    assert clean > 0.9

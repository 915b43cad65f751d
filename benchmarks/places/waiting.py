"""Work that can wait, in several regions: carbon saved by where and when it runs.

Every region has the same amount of waiting work at midnight UTC, due within 24 hours, beside its
interactive demand (`recorded`). Each hour every region plans by the planner's own rule
(`services.planner.core.waiting`) on the room that the others offer, and sends what they grant:

- at once: in its own region as room allows;
- home: the planner's rule with its own hours alone;
- cleanest now: at once, in the cleanest region that has room;
- yesterday's best: the linear program's answer for yesterday's intensities, run today;
- cinquefoil: forecasts are yesterday's same hours, scaled by the present one;
- cinquefoil, hours known: the same with perfect forecasts;
- optimum: a linear program that knows all hours and rooms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from benchmarks.harness import Figures, Report, in_processes
from benchmarks.places.recorded import CAPACITY, REQUEST_J, STEPS_H, WORK_W, Array, Job, load
from services.kit.units import J_PER_KWH
from services.planner.core.regions.grants import HEADROOM, allot
from services.planner.core.regions.shares import Wish
from services.planner.core.waiting.model import Away, Choice, Due, Slot
from services.planner.core.waiting.queue import Backlog
from services.planner.core.waiting.release import plan_release

HOURS: Final = 24
HOUR_S: Final = 3600.0
GPU_RPS: Final = WORK_W / REQUEST_J
WORK_GPU_H: Final = 4.0
WORK: Final = WORK_GPU_H * HOUR_S * GPU_RPS
MIN_SAVING: Final = 0.05


@dataclass(frozen=True)
class Day:
    """One day of a set, by hour and region.

    Attributes:
        intensity: Intensities, gCO2e/kWh.
        before: Those of the day before.
        room_rps: Room beside interactive demand, req/s.
        permit: Shape (from, to): whether data may be there.
    """

    intensity: Array
    before: Array
    room_rps: Array
    permit: Array

    def grams(self, sent: Array) -> float:
        """Return the emissions of requests by hour and region."""
        return float((sent * self.intensity).sum() * REQUEST_J / J_PER_KWH)


def _day(job: Job, day: int) -> Day:
    today, before = load(job, day), load(job, day - 1)
    hourly = today.demand.reshape(HOURS, STEPS_H, -1).mean(1)
    room_rps = np.maximum(CAPACITY * (1 - HEADROOM) - hourly, 0.0) * GPU_RPS
    permit = np.array([[own.permit(to) for to in today.zones] for own in today.limits])
    return Day(today.intensity[::STEPS_H], before.intensity[::STEPS_H], room_rps, permit)


# ---- policies: requests by hour and region, and those that are late ------------------------------

Sent = tuple[Array, float]
Forecast = Callable[[Day, int], Array]


def _known(day: Day, _hour: int) -> Array:
    return day.intensity


def _as_yesterday(day: Day, hour: int) -> Array:
    expected: Array = day.before * (day.intensity[hour] / np.maximum(day.before[hour], 1.0))
    expected[hour] = day.intensity[hour]
    return expected


def at_once(day: Day) -> Sent:
    """Run each region's work in its own room, from midnight on."""
    left, sent = np.full(day.room_rps.shape[1], WORK), np.zeros_like(day.room_rps)
    for hour, room in enumerate(day.room_rps * HOUR_S):
        sent[hour] = np.minimum(room, left)
        left -= sent[hour]
    return sent, float(left.sum())


def cleanest_now(day: Day) -> Sent:
    """Run all work at once in the cleanest region that has room."""
    count = day.room_rps.shape[1]
    left, sent = np.full(count, WORK), np.zeros_like(day.room_rps)
    for hour, room in enumerate(day.room_rps * HOUR_S):
        free = room.copy()
        for there in np.argsort(day.intensity[hour]):
            for here in np.argsort(-day.intensity[hour]):
                part = min(left[here], free[there]) if day.permit[here, there] else 0.0
                left[here] -= part
                free[there] -= part
                sent[hour, there] += part
    return sent, float(left.sum())


def best_by(intensity: Array, day: Day) -> Sent:
    """Return the linear program's answer for some intensities: flows by (from, hour, to)."""
    hours, count = day.room_rps.shape
    cells = hours * count
    cost = np.tile(intensity.ravel(), count)
    upper = [
        float(day.permit[here, there]) * 1e12
        for here in range(count)
        for _ in range(hours)
        for there in range(count)
    ]
    whole = sparse.kron(sparse.eye(count), np.ones((1, cells)))
    rooms = sparse.kron(np.ones((1, count)), sparse.eye(cells))
    found = linprog(
        cost,
        A_eq=whole,
        b_eq=np.full(count, WORK),
        A_ub=rooms,
        b_ub=day.room_rps.ravel() * HOUR_S,
        bounds=[(0, most) for most in upper],
    )
    return found.x.reshape(count, hours, count).sum(0), 0.0


@dataclass
class _Region:
    """One region's backlog, and what it plans. Attributes: own_rps (at home, by hour)."""

    backlog: Backlog
    own_rps: Array
    choice: Choice | None = None


def planned(day: Day, forecast: Forecast, *, alone: bool = False) -> Sent:
    """Plan every region each hour by the planner's rule; send what is granted."""
    count = day.room_rps.shape[1]
    regions = [_Region(Backlog([Due(HOURS * HOUR_S, WORK)]), np.zeros(HOURS)) for _ in range(count)]
    sent = np.zeros_like(day.room_rps)
    for hour in range(HOURS):
        expected, slots = forecast(day, hour), list[Sequence[Slot]]()
        for here, region in enumerate(regions):
            slots.append(_slots(day, regions, here, hour, expected, alone=alone))
            release = plan_release(region.backlog.left(), slots[here])
            region.choice = release.choices[0]
            region.own_rps = np.zeros(HOURS)
            region.own_rps[hour:] = [each.home_rps for each in release.choices]
        granted = _granted(day, regions, slots, hour)
        for here, region in enumerate(regions):
            home_rps = region.own_rps[hour]
            rates = [home_rps, *granted[here].values()]
            if sum(rates) > 0:
                list(region.backlog.answer(slots[here][0], sum(rates)))
            sent[hour, here] += home_rps * HOUR_S
            for there, rate_rps in granted[here].items():
                sent[hour, there] += rate_rps * HOUR_S
        for region in regions:
            left = region.backlog.left()
            region.backlog = Backlog([Due(each.due_s - HOUR_S, each.requests) for each in left])
    return sent, sum(region.backlog.requests for region in regions)


def _slots(  # noqa: PLR0913 - what a region sees
    day: Day, regions: list[_Region], here: int, hour: int, expected: Array, *, alone: bool
) -> list[Slot]:
    def away(at: int) -> tuple[Away, ...]:
        return tuple(
            Away(
                str(there),
                max(day.room_rps[at, there] - regions[there].own_rps[at], 0.0),
                float(expected[at, there]),
                REQUEST_J,
                1 / (1 - MIN_SAVING),
            )
            for there in range(len(regions))
            if there != here and day.permit[here, there] and not alone
        )

    return [
        Slot(
            (at - hour) * HOUR_S,
            HOUR_S,
            float(expected[at, here]),
            float(day.room_rps[at, here]),
            REQUEST_J,
            away=away(at),
        )
        for at in range(hour, HOURS)
    ]


def _granted(
    day: Day, regions: list[_Region], slots: list[Sequence[Slot]], hour: int
) -> list[dict[int, float]]:
    """Return what each region is granted by the others, req/s: its own work goes first."""
    granted: list[dict[int, float]] = [{} for _ in regions]
    for there, receiver in enumerate(regions):
        wishes = {}
        for here, region in enumerate(regions):
            choice = region.choice
            rates = choice.away_rps if choice else ()
            for each, rate_rps in zip(slots[here][0].away, rates, strict=False):
                if each.region == str(there):
                    loss = day.intensity[hour, here] - day.intensity[hour, there]
                    wishes[str(here)] = Wish(rate_rps, float(loss))
        room_rps = day.room_rps[hour, there] - receiver.own_rps[hour]
        for name, rate_rps in allot(float(room_rps), wishes).items():
            granted[int(name)][there] = rate_rps
    return granted


POLICIES: Final[dict[str, Callable[[Day], Sent]]] = {
    "at once": at_once,
    "home": lambda day: planned(day, _as_yesterday, alone=True),
    "cleanest now": cleanest_now,
    "yesterday's best": lambda day: best_by(day.before, day),
    "cinquefoil": lambda day: planned(day, _as_yesterday),
    "cinquefoil, hours known": lambda day: planned(day, _known),
    "optimum": lambda day: best_by(day.intensity, day),
}


def run(job: Job) -> list[dict[str, Any]]:
    """Return a row for each policy of a set."""
    days = [_day(job, day) for day in job.days]
    found = {name: [policy(day) for day in days] for name, policy in POLICIES.items()}
    grams = {
        name: sum(day.grams(sent) for day, (sent, _) in zip(days, its, strict=True))
        for name, its in found.items()
    }
    possible = grams["at once"] - grams["optimum"]
    work = WORK * sum(day.room_rps.shape[1] for day in days)
    return [
        {
            "set": job.name,
            "policy": name,
            "g_per_request": grams[name] / work,
            "saved": 1 - grams[name] / grams["at once"],
            "of_optimum": (grams["at once"] - grams[name]) / possible,
            "late": sum(late for _, late in its) / work,
        }
        for name, its in found.items()
    ]


def measure(jobs: list[Job]) -> Report:
    """Return the figures of some sets."""
    rows = [row for its in in_processes(run, jobs).values() for row in its]
    note = f"{WORK_GPU_H:g} GPU hours of work in each region at midnight UTC, due in 24 hours"
    return Report([Figures("Work that can wait", rows, note)], {"waiting": rows})

"""Release of waiting work: room first, then clean hours, a replica more only for a deadline.

Each slot is decided from what is known at its start, as a planner decides again each time:

- must: what later room, less a tenth, cannot hold until its deadline, runs now: in the room that
  interactive requests leave, then in replicas that are powered for it, each filled whole.
- may: all that is due by a time takes `SPREAD` x its room of the time until then; where now is
  among the cleanest part of that length by forecast, it runs as far as it fits in the room. The
  latest such time counts, so that what is due soon does not wait with what is due tomorrow. Nothing
  is powered for that.
- else it waits. What is due within a slot's length does not.

The marginal carbon of room decides, not the intensity alone: a waiting request costs more beside
few interactive ones. Hours of peer regions count beside those at home (`places`). What later slots
will do is the same rule with the forecast for truth.
Compared with optimisation over the forecast and with perfect knowledge: docs/batches.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from cinquefoil.planner.v1.records import ReleaseCause
from services.kit.units import carbon_gco2e
from services.planner.core.waiting.model import Choice, Due, Release, Shortage, Slot
from services.planner.core.waiting.places import (
    CleanerRoom,
    choose_places,
    with_places,
    without_places,
)
from services.planner.core.waiting.queue import NOTHING, Backlog

SPREAD = 1.5
"""Part of the time left that is used, over the part that the queue fills: room may turn out
smaller, and arrivals come."""

MARGIN = 1.02
"""Factor on the threshold: where the grid is flat, waiting risks room for nothing."""

_IDLE = Choice(math.inf, 0.0, 0.0, 0.0, 0, ReleaseCause.NOTHING_WAITS)

Rule = Callable[[Backlog, Sequence[Slot]], Choice]
"""Decides the first of some slots."""


def decide(backlog: Backlog, slots: Sequence[Slot]) -> Choice:
    """Decide what runs in the first of some slots.

    Args:
        backlog: What waits.
        slots: This slot and the later ones, without gaps.
    """
    if backlog.requests <= NOTHING:
        return _IDLE
    found = _at_home(backlog, slots)
    return with_places(found, backlog, slots, SPREAD, MARGIN) if slots[0].away else found


def _at_home(backlog: Backlog, slots: Sequence[Slot]) -> Choice:
    slot, total = slots[0], backlog.requests
    must_rps = backlog.must_rps(slots)
    cut = _Cut(-math.inf, 0.0, ReleaseCause.HELD) if slot.held else _cut(backlog, slots)
    most_rps = min(slot.room_rps, max(cut.requests / slot.length_s, must_rps))
    if cut.requests > 0 and must_rps <= slot.room_rps and most_rps > 0:
        later_rps = max(must_rps - cut.requests / slot.length_s, 0.0)
        return Choice(cut.due_s, later_rps, most_rps, 0.0, 0, cut.cause)
    if must_rps <= 0:
        cause = cut.cause if slot.room_rps > 0 or slot.held else ReleaseCause.NO_ROOM
        return Choice(cut.due_s, 0.0, 0.0, 0.0, 0, cause)
    return _due(slot, must_rps, total, cut.due_s)


def _due(slot: Slot, must_rps: float, total: float, fill_due_s: float) -> Choice:
    """Return the choice for work that must run: a replica more is filled whole."""
    room_rps = min(must_rps, slot.room_rps)
    short_rps, replicas, woken_rps = must_rps - room_rps, 0, 0.0
    if short_rps > NOTHING and slot.replica_rps > 0:
        most = math.floor(slot.woken_rps / slot.replica_rps + NOTHING)
        replicas = min(math.ceil(short_rps / slot.replica_rps - NOTHING), most)
        left_rps = max(total / slot.length_s - room_rps, short_rps)
        woken_rps = min(replicas * slot.replica_rps, left_rps)
    if must_rps >= slot.room_rps:
        fill_due_s = math.inf
    return Choice(fill_due_s, room_rps + woken_rps, room_rps, woken_rps, replicas, ReleaseCause.DUE)


class _Cut(NamedTuple):
    """Work that may run in the first slot: all that is due by `due_s`; else why none may."""

    due_s: float
    requests: float
    cause: ReleaseCause


def _cut(backlog: Backlog, slots: Sequence[Slot]) -> _Cut:
    """Return the part of the queue, the earliest deadlines first, that may fill the room now."""
    slot, short_s = slots[0], max(each.length_s for each in slots[:2])
    found = _Cut(slot.start_s + short_s, 0.0, ReleaseCause.LATER)
    *_, (last_s, total) = backlog.due()
    if slot.intensity_gco2e_per_kwh is None:
        return _Cut(math.inf, total, ReleaseCause.ROOM)
    is_clean = _Cleanest(slots)
    for due_s, requests in backlog.due():
        if due_s <= slot.start_s + short_s:
            found = _Cut(slot.start_s + short_s, requests, ReleaseCause.ROOM)
        elif cause := is_clean.until(due_s, requests):
            found = _Cut(due_s, requests, cause)
    return found._replace(due_s=math.inf) if found.due_s >= last_s and found.requests else found


class _Cleanest:
    """Compares the first of some slots with those after it of which a forecast is known."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        known = [
            each for each in slots if each.intensity_gco2e_per_kwh is not None and not each.held
        ]
        self._starts_s = [each.start_s for each in known]
        self._rooms = list(accumulate(each.room_rps * each.length_s for each in known))
        now = slots[0].price
        self._cleaner = list(accumulate(MARGIN * each.price < now for each in known))
        away = any(each.away for each in slots)
        self._away = CleanerRoom(slots, now / MARGIN, home=False) if away else None

    def until(self, due_s: float, requests: float) -> ReleaseCause | None:
        """Return why work that is due by a time may run in the first slot; None: it waits."""
        known = bisect_left(self._starts_s, due_s)
        if known <= 1:
            return ReleaseCause.ROOM
        if self._away is not None:
            requests -= self._away.until(due_s) / SPREAD
            if requests <= 0:
                return None
        part = SPREAD * requests / max(self._rooms[known - 1], NOTHING)
        rank = min(max(part, 1 / known), 1.0) * (known - 1)
        return ReleaseCause.CLEAN if self._cleaner[known - 1] <= rank else None


def at_once(backlog: Backlog, slots: Sequence[Slot]) -> Choice:
    """Decide the first slot without a plan: all runs at once, replicas are powered for it."""
    slot, total = slots[0], backlog.requests
    room_rps = min(slot.room_rps, total / slot.length_s)
    woken_rps = min(total / slot.length_s - room_rps, slot.woken_rps)
    replicas = math.ceil(woken_rps / slot.replica_rps - NOTHING) if slot.replica_rps else 0
    later_rps = room_rps + woken_rps
    return Choice(math.inf, later_rps, room_rps, woken_rps, replicas, ReleaseCause.ROOM)


def plan_release(work: Iterable[Due], slots: Sequence[Slot]) -> Release:
    """Return when waiting work runs, what comes too late, and what it emits.

    Args:
        work: What waits.
        slots: From now on, without gaps, at least one.
    """
    work, home_g = list(work), 0.0
    course = _course(work, without_places(slots), decide)
    if any(each.away for each in slots):
        slots = choose_places(slots)
        away = _course(work, slots, decide)
        if _is_better(away, course):
            course, home_g = away, course.grams
    choices, late, done_s, planned_g = course
    *_, at_once_g = _course(work, slots, at_once)
    return Release(
        slots=slots,
        choices=choices,
        shortages=tuple(_shortages(work, slots, late)),
        done_s=done_s,
        planned_gco2e=planned_g,
        at_once_gco2e=at_once_g,
        own_pool_gco2e=_own_pool_g(work, slots[0]),
        home_gco2e=home_g,
    )


Lateness = dict[float, list[tuple[float, float]]]
"""Requests and the time of their answer, s, by the deadline that they miss."""


class _Course(NamedTuple):
    """Choices of all slots, what is late, when all is done, and the emissions."""

    choices: list[Choice]
    late: Lateness
    done_s: float | None
    grams: float


def _is_better(away: _Course, home: _Course) -> bool:
    """Return whether a course with peer regions emits less, with no more that is late."""
    late, late_at_home = (
        sum(part for parts in each.late.values() for part, _ in parts) for each in (away, home)
    )
    used = any(each.away_rps for each in away.choices)
    return used and away.grams < home.grams and late <= late_at_home * (1 + NOTHING) + NOTHING


def _course(work: Sequence[Due], slots: Sequence[Slot], rule: Rule) -> _Course:
    """Return the course of some work by a rule."""
    backlog, choices, late = Backlog(work), list[Choice](), Lateness()
    done_s: float | None = None if backlog.requests > NOTHING else 0.0
    grams = 0.0
    for at, slot in enumerate(slots):
        choice = rule(backlog, slots[at:]) if backlog.requests > NOTHING else _IDLE
        choices.append(choice)
        if choice.rate_rps <= 0:
            continue
        for due_s, part, at_s in backlog.answer(slot, choice.rate_rps):
            if at_s > due_s + slot.length_s * NOTHING:
                late.setdefault(due_s, []).append((part, at_s))
            done_s = at_s if backlog.requests <= NOTHING else None
        energy_w = choice.room_rps * slot.room_j + choice.woken_rps * slot.woken_j
        grams += carbon_gco2e(energy_w * slot.length_s, slot.intensity_gco2e_per_kwh or 0.0)
        for each, rate_rps in zip(slot.away, choice.away_rps, strict=False):
            joules = rate_rps * each.energy_j * slot.length_s
            grams += carbon_gco2e(joules, each.intensity_gco2e_per_kwh)
    for due_s, left in backlog.due():
        if due_s < slots[-1].end_s:
            late.setdefault(due_s, []).append((left, math.inf))
    if backlog.requests > NOTHING:
        done_s = None
    return _Course(choices, late, done_s, grams)


def _shortages(work: Sequence[Due], slots: Sequence[Slot], late: Lateness) -> Iterable[Shortage]:
    replica_rps = slots[0].replica_rps
    for due_s in sorted(late):
        parts = late[due_s]
        by_then = sum(each.requests for each in work if each.due_s <= due_s)
        possible_s = max(at_s for _, at_s in parts)
        room = sum(each.all_rps * max(min(each.end_s, due_s) - each.start_s, 0.0) for each in slots)
        missing, replicas = by_then - room, 0
        if due_s > 0 and replica_rps > 0:
            replicas = max(math.ceil(missing / (due_s * replica_rps)), 1)
        yield Shortage(
            due_s=due_s,
            requests=by_then,
            late=sum(part for part, _ in parts),
            possible_s=possible_s if math.isfinite(possible_s) else None,
            replicas=replicas,
        )


def _own_pool_g(work: Sequence[Due], now: Slot) -> float:
    """Return the emissions of replicas of its own that answer at once, each at its best batch."""
    joules = sum(each.requests for each in work) * now.woken_j
    return carbon_gco2e(joules, now.intensity_gco2e_per_kwh or 0.0)

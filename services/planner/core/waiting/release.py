"""Release of waiting work: room first, then clean hours, a replica more only for a deadline.

Each slot is decided from what is known at its start, as a planner decides again each time:

- must: what later room, less a tenth, cannot hold until its deadline, runs now: in the room that
  interactive requests leave, then in replicas that are powered for it, each filled whole.
- may: the queue takes `SPREAD` x queue / room of the time left; where now is among the cleanest
  part of that length by forecast, all that fits in the room runs. Nothing is powered for that.
- else it waits.

The marginal carbon of room decides, not the intensity alone: a waiting request costs more beside
few interactive ones. What later slots will do is the same rule with the forecast for truth.
Compared with optimisation over the forecast and with perfect knowledge: docs/batches.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from cinquefoil.planner.v1.records import ReleaseCause
from services.kit.units import carbon_gco2e
from services.planner.core.waiting.model import Choice, Due, Release, Shortage, Slot
from services.planner.core.waiting.queue import NOTHING, Backlog

SPREAD = 1.5
"""Part of the time left that is used, over the part that the queue fills: room may turn out
smaller, and arrivals come."""

MARGIN = 1.02
"""Factor on the threshold: where the grid is flat, waiting risks room for nothing."""

SHORT_S = 3600.0
"""Time left up to which nothing waits for a cleaner slot, s."""

_IDLE = Choice(False, 0.0, 0.0, 0, ReleaseCause.NOTHING_WAITS)

Rule = Callable[[Backlog, Sequence[Slot]], Choice]
"""Decides the first of some slots."""


def decide(backlog: Backlog, slots: Sequence[Slot]) -> Choice:
    """Decide what runs in the first of some slots.

    Args:
        backlog: What waits.
        slots: This slot and the later ones, without gaps.
    """
    slot, total = slots[0], backlog.requests
    if total <= NOTHING:
        return _IDLE
    must_rps = backlog.must_rps(slots)
    cause = _may(backlog, slots)
    if cause is not ReleaseCause.LATER and not slot.held:
        most_rps = min(slot.room_rps, total / slot.length_s)
        if must_rps <= most_rps and most_rps > 0:
            return Choice(True, most_rps, 0.0, 0, cause)
    if must_rps <= 0:
        if slot.held:
            cause = ReleaseCause.HELD
        elif slot.room_rps <= 0:
            cause = ReleaseCause.NO_ROOM
        return Choice(False, 0.0, 0.0, 0, cause)
    return _due(slot, must_rps, total)


def _due(slot: Slot, must_rps: float, total: float) -> Choice:
    """Return the choice for work that must run: a replica more is filled whole."""
    room_rps = min(must_rps, slot.room_rps)
    short_rps, replicas, woken_rps = must_rps - room_rps, 0, 0.0
    if short_rps > NOTHING and slot.replica_rps > 0:
        most = math.floor(slot.woken_rps / slot.replica_rps + NOTHING)
        replicas = min(math.ceil(short_rps / slot.replica_rps - NOTHING), most)
        left_rps = max(total / slot.length_s - room_rps, 0.0)
        woken_rps = min(replicas * slot.replica_rps, left_rps)
    fill = must_rps >= slot.room_rps
    return Choice(fill, room_rps, woken_rps, replicas, ReleaseCause.DUE)


def _may(backlog: Backlog, slots: Sequence[Slot]) -> ReleaseCause:
    """Return why all that fits in the room may run in the first slot, or LATER."""
    slot = slots[0]
    left_s = backlog.mean_due_s(slot.start_s)
    if left_s <= SHORT_S or left_s <= slot.length_s:
        return ReleaseCause.ROOM
    until_s = slot.start_s + left_s
    known = [
        each
        for each in slots
        if each.start_s < until_s and each.intensity_gco2e_per_kwh is not None and not each.held
    ]
    if slot.intensity_gco2e_per_kwh is None or len(known) <= 1:
        return ReleaseCause.ROOM
    room = sum(each.room_rps * each.length_s for each in known)
    part = min(max(SPREAD * backlog.requests / max(room, NOTHING), 1 / len(known)), 1.0)
    limit = MARGIN * float(np.quantile([_price(each) for each in known], part))
    return ReleaseCause.CLEAN if _price(slot) <= limit else ReleaseCause.LATER


def _price(slot: Slot) -> float:
    """Return the marginal emissions of a request in a slot's room, in any unit."""
    return (slot.intensity_gco2e_per_kwh or 0.0) * (slot.room_j or 1.0)


def at_once(backlog: Backlog, slots: Sequence[Slot]) -> Choice:
    """Decide the first slot without a plan: all runs at once, replicas are powered for it."""
    slot, total = slots[0], backlog.requests
    room_rps = min(slot.room_rps, total / slot.length_s)
    woken_rps = min(total / slot.length_s - room_rps, slot.woken_rps)
    replicas = math.ceil(woken_rps / slot.replica_rps - NOTHING) if slot.replica_rps else 0
    return Choice(True, room_rps, woken_rps, replicas, ReleaseCause.ROOM)


def plan_release(work: Iterable[Due], slots: Sequence[Slot]) -> Release:
    """Return when waiting work runs, what comes too late, and what it emits.

    Args:
        work: What waits.
        slots: From now on, without gaps, at least one.
    """
    work = list(work)
    choices, late, done_s, planned_g = _course(work, slots, decide)
    *_, at_once_g = _course(work, slots, at_once)
    return Release(
        slots=slots,
        choices=choices,
        shortages=tuple(_shortages(work, slots, late)),
        done_s=done_s,
        planned_gco2e=planned_g,
        at_once_gco2e=at_once_g,
        own_pool_gco2e=_own_pool_g(work, slots[0]),
    )


Lateness = dict[float, list[tuple[float, float]]]
"""Requests and the time of their answer, s, by the deadline that they miss."""


def _course(
    work: Sequence[Due], slots: Sequence[Slot], rule: Rule
) -> tuple[list[Choice], Lateness, float | None, float]:
    """Return what runs in each slot, what is late, when all is done, and the emissions."""
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
    for due_s, left in Backlog(_left(backlog)).due():
        if due_s < slots[-1].end_s:
            late.setdefault(due_s, []).append((left, math.inf))
    if backlog.requests > NOTHING:
        done_s = None
    return choices, late, done_s, grams


def _left(backlog: Backlog) -> list[Due]:
    before, found = 0.0, list[Due]()
    for due_s, requests in backlog.due():
        found.append(Due(due_s, requests - before))
        before = requests
    return found


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

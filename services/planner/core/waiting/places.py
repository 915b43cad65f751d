"""Waiting work in peer regions: where an hour of theirs is cleaner than those at home.

Deadlines never depend on a peer: what must run now is decided by the room at home alone
(`release`). Of the rest, the cleanest room before a deadline counts, wherever it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from services.planner.core.regions.offers import PeerHours
from services.planner.core.waiting.model import Away, Choice, Slot
from services.planner.core.waiting.queue import NOTHING, Backlog

MOST_PLACES: Final = 4
"""Peer regions that are looked at for a model: those of least mean price."""


def within(peer: PeerHours, slot: Slot, hour_s: float) -> Away | None:
    """Return what a peer offers in a slot; None: its hours do not reach so far.

    Args:
        peer: The peer.
        slot: The slot; the present one starts at 0.
        hour_s: Length of an hour of grid time, s.
    """
    first, last = (
        (at_s - peer.since_s) / hour_s for at_s in (slot.start_s, slot.start_s + slot.length_s)
    )
    if not 0 <= first < last <= len(peer.hours) or hour_s <= 0:
        return None
    parts = [
        (min(at + 1, last) - max(at, first), peer.hours[at])
        for at in range(int(first), math.ceil(last))
    ]
    whole = sum(part for part, _ in parts)
    return Away(
        peer.region,
        sum(part * each.spare_rps for part, each in parts) / whole
        if slot.start_s > 0
        else peer.now_rps,
        sum(part * each.intensity_gco2e_per_kwh for part, each in parts) / whole,
        sum(part * each.energy_j for part, each in parts) / whole,
        peer.weight,
    )


class CleanerRoom:
    """Room of some slots, in peer regions and optionally at home, that is cleaner than a price.

    Args:
        slots: Slots in order, the first included.
        price: The price, as of `Slot.price`; those below count.
        home: Whether room at home counts, too.
    """

    def __init__(self, slots: Sequence[Slot], price: float, *, home: bool) -> None:
        self._slots = slots
        self._rates_rps = [_cleaner_rps(each, price, home=home) for each in slots]
        self._before = [
            0.0,
            *accumulate(
                rate_rps * each.length_s
                for each, rate_rps in zip(slots, self._rates_rps, strict=True)
            ),
        ]
        self._at = 0

    def until(self, due_s: float) -> float:
        """Return the requests that it can answer by a time; times may only grow."""
        while self._at < len(self._slots) and self._slots[self._at].end_s <= due_s:
            self._at += 1
        found = self._before[self._at]
        if self._at < len(self._slots):
            part_s = max(due_s - self._slots[self._at].start_s, 0.0)
            found += self._rates_rps[self._at] * part_s
        return found


def _cleaner_rps(slot: Slot, price: float, *, home: bool) -> float:
    rate_rps = sum(each.rate_rps for each in slot.away if each.price < price)
    is_known = slot.intensity_gco2e_per_kwh is not None and not slot.held
    return rate_rps + (slot.room_rps if home and is_known and slot.price < price else 0.0)


def with_places(
    choice: Choice, backlog: Backlog, slots: Sequence[Slot], spread: float, margin: float
) -> Choice:
    """Return a choice for the first of some slots with what runs in peer regions meanwhile.

    Args:
        choice: What runs at home.
        backlog: What waits.
        slots: This slot and the later ones.
        spread: Part of the cleaner room that the queue may fill, over the part that it does.
        margin: Factor on prices: those closer to each other count as equal.
    """
    slot, left = slots[0], backlog.requests - choice.home_rps * slots[0].length_s
    rates_rps = dict.fromkeys(slot.away, 0.0)
    for place in sorted(slot.away, key=lambda each: each.price):
        if left <= NOTHING:
            break
        part = min(_may_run(backlog, slots, place, spread, margin), left)
        rates_rps[place] = min(place.rate_rps, part / slot.length_s)
        left -= rates_rps[place] * slot.length_s
    if not any(rates_rps.values()):
        return choice
    return replace(choice, away_rps=tuple(rates_rps[each] for each in slot.away))


def _may_run(
    backlog: Backlog, slots: Sequence[Slot], place: Away, spread: float, margin: float
) -> float:
    """Return the requests for which cleaner room, here or there, does not suffice.

    Those due within the slot run at home: a peer that is lost would leave them no time.
    """
    cleaner = CleanerRoom(slots, place.price / margin, home=True)
    found = 0.0
    for due_s, requests in backlog.due():
        if due_s > slots[0].end_s and cleaner.until(due_s) <= spread * requests:
            found = requests
    return found


def without_places(slots: Sequence[Slot]) -> Sequence[Slot]:
    """Return slots without what peer regions offer."""
    return [replace(each, away=()) if each.away else each for each in slots]


def choose_places(slots: Sequence[Slot]) -> Sequence[Slot]:
    """Return slots with the offers of the cleanest few peer regions only."""
    prices: dict[str, list[float]] = {}
    for each in slots:
        for place in each.away:
            prices.setdefault(place.region, []).append(place.price)
    if len(prices) <= MOST_PLACES:
        return slots
    ranked = sorted(prices, key=lambda name: sum(prices[name]) / len(prices[name]))
    kept = frozenset(ranked[:MOST_PLACES])
    return [
        replace(each, away=tuple(place for place in each.away if place.region in kept))
        for each in slots
    ]

"""Offers of the coming hours to waiting work: room as of yesterday, the grid as forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.planner.core.waiting.model import Slot

HOUR_S: Final = 3600.0
DAY_H: Final = 24
LOOKED_AT_H: Final = 72
"""Hours that are looked at, grid time: the longest window."""

_KEEP: Final = 0.7
"""Weight of what was known of an hour of the day when the same hour comes again."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer of a model's replicas now; rates in req/s, energies in J per request.

    Attributes:
        room_rps, room_j: Beside interactive requests in what runs.
        woken_rps: On parked GPUs, all of them.
        woken_j: On a replica of its own, whether a GPU is parked for it or not.
        replica_rps: On one of these.
        usable_rps: Load that a plan provides one of these for.
    """

    room_rps: float
    room_j: float
    woken_rps: float = 0.0
    woken_j: float = 0.0
    replica_rps: float = 0.0
    usable_rps: float = 0.0


class RoomMemory:
    """Offers of a model's replicas in each hour of the day, grid time."""

    def __init__(self, hours: Sequence[Offer | None] = ()) -> None:
        self.hours: list[Offer | None] = [*hours][:DAY_H] or [None] * DAY_H
        self._at = -1

    def observe(self, hour: int, offer: Offer) -> None:
        """Record what is offered in an hour since the epoch; the mean of its moments counts."""
        before = self.hours[hour % DAY_H]
        keep = _KEEP if before is not None and hour == self._at else 0.0
        self._at = hour
        if before is not None and keep:
            offer = replace(
                offer,
                room_rps=keep * before.room_rps + (1 - keep) * offer.room_rps,
                room_j=keep * before.room_j + (1 - keep) * offer.room_j,
            )
        self.hours[hour % DAY_H] = offer

    def at(self, hour: int) -> Offer | None:
        """Return what was offered in the last same hour of the day; None: not known."""
        return self.hours[hour % DAY_H]


def slots_of(
    now: Offer,
    memory: RoomMemory,
    intensity: Callable[[float, float], float | None],
    grid_now_s: float,
    speedup: float = 1.0,
) -> Iterator[Slot]:
    """Yield hours of grid time, the rest of the present one first, as slots of real time.

    Args:
        now: What is offered now.
        memory: What was offered in each hour of the day.
        intensity: Returns the mean intensity between two instants of grid time, PUE included,
            gCO2e/kWh; None: not known.
        grid_now_s: Grid time, s since the epoch.
        speedup: Grid seconds per second.
    """
    at_s, hour = grid_now_s, int(grid_now_s // HOUR_S)
    end_s = grid_now_s + LOOKED_AT_H * HOUR_S
    while at_s < end_s:
        until_s = min((hour + 1) * HOUR_S, end_s)
        first = at_s == grid_now_s
        offer = now if first else memory.at(hour) or now
        yield Slot(
            start_s=(at_s - grid_now_s) / speedup,
            length_s=(until_s - at_s) / speedup,
            intensity_gco2e_per_kwh=intensity(at_s, at_s if first else until_s),
            room_rps=offer.room_rps,
            room_j=offer.room_j,
            woken_rps=now.woken_rps if first else offer.woken_rps,
            replica_rps=now.replica_rps,
            woken_j=now.woken_j,
        )
        at_s, hour = until_s, hour + 1

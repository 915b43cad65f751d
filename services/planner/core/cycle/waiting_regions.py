"""Waiting work between regions: what runs where by plan, and what is offered to that of peers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cinquefoil.planner.v1.records import ReleaseAway, ReleasePeriod, WaitingRelease
from cinquefoil.regions.v1.records import OfferedHour
from services.planner.core.regions.offers import PeerHours
from services.planner.core.waiting.model import Away, Choice, Slot
from services.planner.core.waiting.outlook import HOUR_S, RoomMemory
from services.planner.core.waiting.places import within

MAX_HOURS: Final = 48
"""Hours that a region offers at most."""


def offered(peers: Sequence[PeerHours], slot: Slot, hour_s: float) -> tuple[Away, ...]:
    """Return what peers offer in a slot; `hour_s`: length of an hour of grid time, s."""
    found = (within(peer, slot, hour_s) for peer in peers)
    return tuple(each for each in found if each is not None)


def released(slot: Slot, choice: Choice) -> tuple[ReleaseAway, ...]:
    """Return what runs in peer regions in a slot, cleanest first."""
    places = zip(slot.away, choice.away_rps, strict=False)
    return tuple(
        ReleaseAway(
            region=each.region,
            rate_rps=rate_rps,
            intensity_gco2e_per_kwh=each.intensity_gco2e_per_kwh,
            energy_j=each.energy_j,
        )
        for each, rate_rps in sorted(places, key=lambda at: at[0].price)
        if rate_rps > 0
    )


def away_rps(release: WaitingRelease | None, now: datetime) -> dict[str, float]:
    """Return what is planned to run now in each peer region, req/s."""
    period = _period(release, now)
    return {} if period is None else {each.region: each.rate_rps for each in period.away}


def home_rps(release: WaitingRelease | None, at: datetime) -> float:
    """Return what is planned to run in this region at a time, req/s."""
    period = _period(release, at)
    if period is None:
        return 0.0
    return max(period.rate_rps - sum(each.rate_rps for each in period.away), 0.0)


def _period(release: WaitingRelease | None, at: datetime) -> ReleasePeriod | None:
    periods: Iterable[ReleasePeriod] = () if release is None else release.periods
    return next((each for each in periods if each.since <= at < each.until), None)


@dataclass(frozen=True, slots=True)
class ComingHours:
    """Room of a model in the coming hours.

    Attributes:
        grid_now_s: Grid time, s since the epoch.
        memory: What was left in each hour of the day.
        part: What is attained of it, 0..1.
        intensity: Returns the expected intensity between two instants; None: not known.
        own_rps: Returns what own waiting work takes at a time of grid time from now, s.
    """

    grid_now_s: float
    memory: RoomMemory
    part: float
    intensity: Callable[[float, float], float | None]
    own_rps: Callable[[float], float]

    def offers(self, present: OfferedHour) -> tuple[OfferedHour, ...]:
        """Return what is offered to peers, as long as the grid's forecast reaches.

        Args:
            present: Offer of this moment; its energy counts where no hour is known.
        """
        found = []
        for after_h in range(MAX_HOURS):
            start_s = self.grid_now_s + after_h * HOUR_S
            intensity = self.intensity(start_s, start_s + HOUR_S)
            known = self.memory.at(int((start_s + (after_h > 0) * HOUR_S / 2) // HOUR_S))
            room_rps, energy_j = present.spare_rps, present.energy_j
            if known is not None:
                energy_j = known.room_j or energy_j
                if after_h:
                    own_rps = self.own_rps((after_h + 0.5) * HOUR_S)
                    room_rps = max(self.part * known.room_rps - own_rps, 0.0)
            if after_h and intensity is None:
                break
            if not after_h or intensity is None:
                intensity = present.intensity_gco2e_per_kwh
            found.append(OfferedHour(intensity, room_rps, energy_j))
        return tuple(found)

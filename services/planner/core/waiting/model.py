"""Values of waiting work: what is due when, and what room there will be for it.

Times are seconds from now. A replica is one segment of the model, or what a plan would add at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cinquefoil.planner.v1.records import ReleaseCause


@dataclass(frozen=True, slots=True)
class Due:
    """Requests that wait, and are due together.

    Attributes:
        due_s: Time until they must be answered, s; negative: they are late.
        requests: Their number, in the model's usual requests: longer ones count as several.
    """

    due_s: float
    requests: float


@dataclass(frozen=True, slots=True)
class Away:
    """Offer of a peer region to a model's waiting work, in one slot.

    Attributes:
        region: The region.
        rate_rps: What it may grant, req/s.
        intensity_gco2e_per_kwh: Expected intensity, PUE included.
        energy_j: Marginal energy of a request there, J.
        weight: Factor on its carbon where it is compared with this region.
    """

    region: str
    rate_rps: float
    intensity_gco2e_per_kwh: float
    energy_j: float
    weight: float = 1.0

    @property
    def price(self) -> float:
        """Weighted emissions of a request, in any unit."""
        return self.weight * self.intensity_gco2e_per_kwh * self.energy_j


@dataclass(frozen=True, slots=True)
class Slot:
    """A stretch of time, and what it offers to a model's waiting work.

    Attributes:
        start_s: Start, s.
        length_s: Length, s.
        intensity_gco2e_per_kwh: Expected intensity, PUE included; None: not known.
        room_rps: What interactive requests leave in replicas that run anyway, req/s.
        room_j: Marginal energy of a request there, J.
        woken_rps: What all replicas could do that may be powered for waiting work, req/s.
        replica_rps: What one of them does when it is full, req/s.
        woken_j: Marginal energy of a request on a replica of its own, J.
        held: Whether only work that is due may run: less power is required.
        away: Offers of peer regions.
    """

    start_s: float
    length_s: float
    intensity_gco2e_per_kwh: float | None
    room_rps: float
    room_j: float = 0.0
    woken_rps: float = 0.0
    replica_rps: float = 0.0
    woken_j: float = 0.0
    held: bool = False
    away: tuple[Away, ...] = ()

    @property
    def end_s(self) -> float:
        """End of the slot, s."""
        return self.start_s + self.length_s

    @property
    def all_rps(self) -> float:
        """All that can run in it in this region, req/s."""
        return self.room_rps + self.woken_rps

    @property
    def price(self) -> float:
        """Marginal emissions of a request in its room, in any unit."""
        return (self.intensity_gco2e_per_kwh or 0.0) * (self.room_j or 1.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """Rates of a slot.

    Attributes:
        fill_due_s: Requests due by then may run as far as they fit beside interactive ones, s;
            infinite: all.
        later_rps: The most that runs of those due later, req/s.
        room_rps: Expected in replicas that run anyway, req/s.
        woken_rps: In replicas that are powered for it, req/s.
        replicas: These replicas.
        cause: Reason.
        away_rps: In each peer region of `Slot.away`; empty: in none.
    """

    fill_due_s: float
    later_rps: float
    room_rps: float
    woken_rps: float
    replicas: int
    cause: ReleaseCause
    away_rps: tuple[float, ...] = ()

    @property
    def fill(self) -> bool:
        """All that fits beside interactive requests may run."""
        return math.isinf(self.fill_due_s) and self.fill_due_s > 0

    @property
    def home_rps(self) -> float:
        """All that runs in this region, req/s."""
        return self.room_rps + self.woken_rps

    @property
    def rate_rps(self) -> float:
        """All that runs, req/s."""
        return self.home_rps + sum(self.away_rps)


@dataclass(frozen=True, slots=True)
class Shortage:
    """Requests that cannot be answered in time.

    Attributes:
        due_s: Time until they are due, s.
        requests: All that are due by then.
        late: Those that will be late.
        possible_s: Time until they can be answered; None: beyond what is looked at, s.
        replicas: Replicas more that would do; 0: none would.
    """

    due_s: float
    requests: float
    late: float
    possible_s: float | None
    replicas: int


@dataclass(frozen=True, slots=True)
class Release:
    """When a model's waiting work runs.

    Attributes:
        slots: What each stretch of time offers.
        choices: What runs in each.
        shortages: Deadlines that cannot be kept.
        done_s: Time until all is answered; None: beyond the slots, s.
        planned_gco2e: Marginal emissions of all that waits.
        at_once_gco2e: The same, had it run at once, in room first and woken replicas for the rest.
        own_pool_gco2e: The same, had it run at once on replicas of its own.
        home_gco2e: The same, were there no peer regions; 0: none of it runs in one.
    """

    slots: Sequence[Slot]
    choices: Sequence[Choice]
    shortages: tuple[Shortage, ...]
    done_s: float | None
    planned_gco2e: float
    at_once_gco2e: float
    own_pool_gco2e: float
    home_gco2e: float = 0.0

"""The receiver's half: grants that expire, within what its own demand leaves.

Two regions never see the same free capacity as theirs: what is granted stays reserved until it
expires, whether it is used or not. All of the region's own demand is reserved, also what it sends
away, so that a cut brings everybody home without overload.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from services.planner.core.regions.shares import Wish

VALID_S: Final = 30.0
HEADROOM: Final = 0.05
"""Of capacity: demand moves between two grants."""

ON_THE_WAY_S: Final = 5.0
"""After its expiry a grant is still reserved for requests that left just before."""

_YIELDED: Final = 0.02
"""Of a grant that goes, each time, to a region that would lose more. Slowly: demand is noisy, and
what one region yields is of use to another only when the earlier grant has expired."""

_WISH_S: Final = 20.0
"""Age from which a wish counts no more: regions repeat them every few seconds."""


def allot(room_rps: float, wishes: Mapping[str, Wish]) -> dict[str, float]:
    """Divide room among regions: those first who would lose most elsewhere."""
    left_rps, allotted = max(room_rps, 0.0), {}
    for region in sorted(wishes, key=lambda name: (-wishes[name].loss_gco2e, name)):
        allotted[region] = min(max(wishes[region].rate_rps, 0.0), left_rps)
        left_rps -= allotted[region]
    return allotted


@dataclass(frozen=True, slots=True)
class _Wished:
    wish: Wish
    since_s: float


@dataclass(frozen=True, slots=True)
class _Standing:
    rate_rps: float
    until_s: float


@dataclass(eq=False)
class Granter:
    """Grants of one model in this region.

    Attributes:
        valid_s: Time that a grant may be used, s.
        headroom: Share of the capacity that is never granted.
    """

    valid_s: float = VALID_S
    headroom: float = HEADROOM
    _wishes: dict[str, _Wished] = field(default_factory=dict)
    _standing: dict[str, deque[_Standing]] = field(default_factory=dict)

    def grant(  # noqa: PLR0913 - what the room is made of
        self,
        region: str,
        wish: Wish,
        *,
        capacity_rps: float,
        own_rps: float,
        guests_rps: float = math.inf,
        now_s: float,
    ) -> float:
        """Grant a region a rate from now on, for `valid_s`; return it, req/s.

        A lower grant than before takes effect for others when the earlier one has expired.

        Args:
            region: The region that wishes.
            wish: Its wish; it replaces the one before.
            capacity_rps: Work that the present plan can do within the objective.
            own_rps: The region's own demand, also what it sends away.
            guests_rps: Work of all other regions that its power limits allow.
            now_s: Now, s.
        """
        self._wishes[region] = _Wished(wish, now_s)
        fresh = {
            name: each.wish
            for name, each in self._wishes.items()
            if now_s - each.since_s <= _WISH_S
        }
        room_rps = max(0.0, min(capacity_rps * (1 - self.headroom) - own_rps, guests_rps))
        rate_rps = self._rate_rps(region, fresh, room_rps, now_s)
        standing = self._standing.setdefault(region, deque())
        while standing and standing[-1].rate_rps <= rate_rps:
            standing.pop()
        standing.append(_Standing(rate_rps, now_s + self.valid_s + ON_THE_WAY_S))
        return rate_rps

    def _rate_rps(
        self, region: str, fresh: Mapping[str, Wish], room_rps: float, now_s: float
    ) -> float:
        """Return a region's next rate: most of what it holds, and its part of what is free."""
        reserved_rps = self.reserved_rps(now_s)
        held_rps = self.held_rps(region, now_s)
        wish_rps = max(fresh[region].rate_rps, 0.0)
        kept_rps = min(wish_rps, held_rps)
        kept_rps = max(min(kept_rps, allot(room_rps, fresh)[region]), kept_rps * (1 - _YIELDED))
        if reserved_rps > room_rps:
            return kept_rps * room_rps / reserved_rps
        missing = {
            name: replace(wish, rate_rps=wish.rate_rps - self.held_rps(name, now_s))
            for name, wish in fresh.items()
        }
        return min(wish_rps, kept_rps + allot(room_rps - reserved_rps, missing)[region])

    def held_rps(self, region: str, now_s: float) -> float:
        """Return the most that a region may send by the grants that it may still use, req/s."""
        standing = self._standing.get(region, deque())
        while standing and standing[0].until_s <= now_s:
            standing.popleft()
        return standing[0].rate_rps if standing else 0.0

    def reserved_rps(self, now_s: float) -> float:
        """Return what all regions together may send, req/s."""
        return sum(self.held_rps(region, now_s) for region in self._standing)

    def forget(self, region: str) -> None:
        """Drop the wish of a region that is a peer no more; its grants stand until they expire."""
        self._wishes.pop(region, None)


@dataclass(eq=False)
class GrantsHeld:
    """Grants that this region got for one model; each counts from when it was requested."""

    _by_region: dict[str, _Standing] = field(default_factory=dict)

    def hold(self, region: str, rate_rps: float, *, valid_s: float, since_s: float) -> None:
        """Replace a region's grant.

        Args:
            region: Who granted it.
            rate_rps: Requests per second.
            valid_s: Time that it is valid, s; believed up to `VALID_S`.
            since_s: When this region requested it: no clocks are compared.
        """
        self._by_region[region] = _Standing(rate_rps, since_s + min(valid_s, VALID_S))

    def drop(self, region: str) -> None:
        """Forget the grant of a region that does not answer: its share comes home."""
        self._by_region.pop(region, None)

    def in_force(self, now_s: float) -> dict[str, float]:
        """Return the grants in force, req/s by region."""
        return {
            region: grant.rate_rps
            for region, grant in self._by_region.items()
            if grant.until_s > now_s
        }

    def valid(self, region: str, now_s: float) -> timedelta:
        """Return how long a region's grant is still in force; 0: there is none."""
        grant = self._by_region.get(region)
        return timedelta(seconds=0.0 if grant is None else max(grant.until_s - now_s, 0.0))

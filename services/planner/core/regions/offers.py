"""Offers of peer regions, as far as they are believed, and in which order they are taken."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import Final

from cinquefoil.regions.v1.records import OfferedHour
from services.kit.units import J_PER_KWH

MAX_INTENSITY_GCO2E_PER_KWH: Final = 2_000.0
"""Above the dirtiest grid of hourly records, with losses: no region claims more."""

FRESH_S: Final = 6 * 3600.0
"""Age from which yesterday's same hour is the better estimate of an intensity."""

DAY_S: Final = 86_400.0

_POWER_KEPT: Final = 0.05
"""Of a site's power limit, that no other region's work uses: agents lower clocks at the limit."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One more request of a model in one region.

    Attributes:
        region: Name of the region.
        energy_j: Energy of one more request, J.
        intensity_gco2e_per_kwh: Carbon intensity there, with the site's overhead.
        extra_latency_s: Network round trip to it, s; 0 at home.
    """

    region: str
    energy_j: float
    intensity_gco2e_per_kwh: float
    extra_latency_s: float = 0.0

    @property
    def carbon_gco2e(self) -> float:
        """Carbon of one more request, gCO2e."""
        return self.energy_j * self.intensity_gco2e_per_kwh / J_PER_KWH


@dataclass(frozen=True, slots=True)
class PeerHours:
    """Offers of a peer region's coming hours.

    Attributes:
        region: The region.
        since_s: Time from now to the start of the first hour, s: not above 0.
        now_rps: What it may grant now, req/s.
        hours: Offers, hour by hour of grid time.
        weight: Factor on its carbon where it is compared with this region.
    """

    region: str
    since_s: float
    now_rps: float
    hours: tuple[OfferedHour, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a model's requests that leave home.

    Attributes:
        regions: Patterns of the regions that may serve it, such as "eu-*".
        max_extra_latency_s: Longest network round trip, s.
        min_saving: Least carbon saved by a move, of a request's carbon at home, 0..1.
        weights: Factors on the carbon in regions, where they are compared; missing: 1.
    """

    regions: Sequence[str] = ("*",)
    max_extra_latency_s: float = 0.1
    min_saving: float = 0.05
    weights: Mapping[str, float] = field(default_factory=dict)

    def weighted(self, offer: Offer) -> float:
        """Return the carbon that an offer counts with, gCO2e."""
        return offer.carbon_gco2e * self.weights.get(offer.region, 1.0)

    def permit(self, region: str) -> bool:
        """Return whether the model's data may be in a region."""
        return any(fnmatchcase(region, pattern) for pattern in self.regions)


def believed(offer: Offer, range_j: tuple[float, float]) -> Offer:
    """Return a peer's offer within the bounds of physics: no request is free of energy.

    Args:
        offer: The offer.
        range_j: Least and most energy of a request on any hardware (`core.problem.energy_range`).
    """
    energy_j = min(max(offer.energy_j, range_j[0]), range_j[1])
    intensity = min(max(offer.intensity_gco2e_per_kwh, 0.0), MAX_INTENSITY_GCO2E_PER_KWH)
    return Offer(offer.region, energy_j, intensity, offer.extra_latency_s)


def worth_sending_to(
    home: Offer, offers: Iterable[Offer], limits: Limits, range_j: tuple[float, float]
) -> tuple[Offer, ...]:
    """Return the regions that a model's requests may go to, cleanest by weight first.

    Args:
        home: One more request at home.
        offers: Of peers; each is bounded by `believed`.
        limits: Residency, latency and the least saving.
        range_j: Least and most energy of a request on any hardware.
    """
    ceiling_gco2e = home.carbon_gco2e * (1 - limits.min_saving)
    found = (
        believed(offer, range_j)
        for offer in offers
        if limits.permit(offer.region) and offer.extra_latency_s <= limits.max_extra_latency_s
    )
    cleaner = (offer for offer in found if limits.weighted(offer) < ceiling_gco2e)
    return tuple(sorted(cleaner, key=lambda offer: (limits.weighted(offer), offer.region)))


def rate_within_power(
    power: Iterable[tuple[float | None, float]], energy_j: float, received_rps: float
) -> float:
    """Return the work of other regions that sites' power limits leave room for, req/s.

    Args:
        power: Of each site of a model's segments: limit (None: there is none) and metered power, W.
        energy_j: Energy of one more request, at the wall.
        received_rps: Work of other regions that the meters show already.
    """
    room_w = 0.0
    for limit_w, metered_w in power:
        if limit_w is None:
            return math.inf
        room_w += limit_w * (1 - _POWER_KEPT) - metered_w
    return max(0.0, received_rps + room_w / energy_j) if energy_j > 0 else math.inf


class IntensityRecord:
    """Intensities of the last day and a quarter, by zone, for hours without news.

    Times are grid time, s. One sample is kept of every `STEP_S`.
    """

    STEP_S: Final = 900.0

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, float]]] = {}

    def in_force(
        self, zone: str, intensity_gco2e_per_kwh: float, age_s: float, now_s: float
    ) -> float | None:
        """Note a zone's last intensity; return the one to compare regions by.

        The last, while it is younger than 6 h; else that of the same hour of yesterday; None where
        that is not known.

        Args:
            zone: The zone.
            intensity_gco2e_per_kwh: Its last intensity.
            age_s: The age of that.
            now_s: Now.
        """
        samples = self._samples.setdefault(zone, deque())
        if age_s <= FRESH_S:
            if not samples or now_s - samples[-1][0] >= self.STEP_S:
                samples.append((now_s, intensity_gco2e_per_kwh))
            while samples[0][0] < now_s - DAY_S - FRESH_S:
                samples.popleft()
            return intensity_gco2e_per_kwh
        yesterday_s = now_s - DAY_S
        index = bisect_right(samples, yesterday_s, key=itemgetter(0)) - 1
        if index >= 0 and yesterday_s - samples[index][0] <= FRESH_S:
            return samples[index][1]
        return None

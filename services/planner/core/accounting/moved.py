"""Requests that clients of one region sent and another region answered, and whose energy is whose.

The account has what this region's meters show. Receipts of forwarded requests say which part of it
was for the clients of others; the rest is for this region's own. So the parts sum to the whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from services.planner.core.accounting.entries import COUNTS, NAMES, EntryKey, Figures, values


class MovedKey(NamedTuple):
    """Identity of moved requests.

    Attributes:
        hour: Start of the hour, UTC.
        model: Model.
        origin: Region whose clients requested it.
        emitted_in: Region that answered.
    """

    hour: datetime
    model: str
    origin: str
    emitted_in: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Moved requests, by their receipts. Attributes: requests, energy_j (active), carbon_gco2e."""

    requests: int = 0
    energy_j: float = 0.0
    carbon_gco2e: float = 0.0

    def __add__(self, other: Moved) -> Moved:
        return Moved(
            self.requests + other.requests,
            self.energy_j + other.energy_j,
            self.carbon_gco2e + other.carbon_gco2e,
        )


class RegionKey(NamedTuple):
    """Identity of an entry by region.

    Attributes:
        hour: Start of the hour, UTC.
        emitted_in: Peer region that emitted it; "": this one.
        origin: Region whose clients requested it; "": no requests' energy.
    """

    hour: datetime
    emitted_in: str
    origin: str


def by_region(
    entries: Iterable[tuple[EntryKey, Figures]], moved: Mapping[MovedKey, Moved], home: str
) -> list[tuple[RegionKey, Figures]]:
    """Return entries by region of the client, and what peers emitted for home's clients.

    Args:
        entries: By hour and model.
        moved: Requests between home and its peers.
        home: This region.
    """
    came: defaultdict[tuple[datetime, str], dict[str, Moved]] = defaultdict(dict)
    sums: defaultdict[RegionKey, Figures] = defaultdict(Figures)
    for (hour, model, origin, emitted_in), each in moved.items():
        if origin == home:
            figures = Figures(
                energy_j=each.energy_j, carbon_gco2e=each.carbon_gco2e, requests=each.requests
            )
            sums[RegionKey(hour, emitted_in, home)] += figures
        else:
            came[hour, model][origin] = each
    for key, figures in entries:
        if not key.model:
            sums[RegionKey(key.hour, "", "")] += figures
            continue
        for origin, part in _parts(figures, came.get((key.hour, key.model), {}), home):
            sums[RegionKey(key.hour, "", origin)] += part
    return sorted(sums.items(), key=lambda entry: entry[0])


_BY_REQUEST = ("base_energy_j", "base_carbon_gco2e", "profile_error_gco2e")


def _parts(whole: Figures, came: Mapping[str, Moved], home: str) -> Iterator[tuple[str, Figures]]:
    """Yield the part of each region in a model's hour; they sum to the whole.

    Energy goes by receipts, BASE's by requests. Receipts of more than was metered count less.
    Tokens are not known by region, and stay home's.
    """
    receipts_j = max(sum(each.energy_j for each in came.values()), whole.energy_j)
    answered = max(sum(each.requests for each in came.values()), whole.requests)
    left = whole
    for region in sorted(came):
        share = came[region].energy_j / receipts_j if receipts_j > 0 else 0.0
        requests = came[region].requests * whole.requests // answered if answered else 0
        of_requests = requests / whole.requests if whole.requests else 0.0
        shares = dict.fromkeys(NAMES, share) | dict.fromkeys(_BY_REQUEST, of_requests)
        shares |= dict.fromkeys(COUNTS, 0.0)
        part = Figures(
            **{name: shares[name] * getattr(whole, name) for name in NAMES if name not in COUNTS},
            requests=requests,
        )
        left = Figures(*(a - b for a, b in zip(values(left), values(part), strict=True)))
        yield region, part
    yield home, left

"""Entries of the account: keys and figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from operator import add, attrgetter
from typing import Literal, NamedTuple

HOUR = timedelta(hours=1)

Grouping = Literal["", "model", "node", "zone", "region"]
"""Column by which the entries of an hour are summed; "": entries stay separate."""

_MAX_HOURS = 31 * 24
"""Longest stretch that one entry is spread over; older energy is put into its first hour."""


class EntryKey(NamedTuple):
    """Identity of an entry.

    Attributes:
        hour: Start of the hour, UTC.
        zone, node: Place; "": unknown.
        model: Model; "": used by no model.
    """

    hour: datetime
    zone: str
    node: str
    model: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Energy and carbon of an entry; entries add up.

    Attributes:
        energy_j: Metered energy: active, idle and unattributed, J.
        idle_j, unattributed_j: Parts of it, J.
        carbon_gco2e: Operational carbon of energy_j, PUE included.
        idle_gco2e, unattributed_gco2e: Parts of it.
        idle_share_j, idle_share_gco2e: A model's share of idle energy, not part of energy_j.
        embodied_gco2e: Embodied carbon of the GPUs.
        base_energy_j, base_carbon_gco2e: Energy and carbon of BASE for the same requests.
        profile_error_gco2e, meter_error_gco2e, intensity_error_gco2e: Change of base_carbon_gco2e -
            carbon_gco2e when that source errs by its half-width (`site`).
        cost_eur: Cost of energy_j at the wall and, with `objective.kind: cost`, of its carbon; 0
            where no price is known.
        requests, input_tokens, output_tokens: Answered requests, and their tokens.
        cached_input_tokens: Of input_tokens, those that servers had cached.
    """

    energy_j: float = 0.0
    idle_j: float = 0.0
    unattributed_j: float = 0.0
    carbon_gco2e: float = 0.0
    idle_gco2e: float = 0.0
    unattributed_gco2e: float = 0.0
    idle_share_j: float = 0.0
    idle_share_gco2e: float = 0.0
    embodied_gco2e: float = 0.0
    base_energy_j: float = 0.0
    base_carbon_gco2e: float = 0.0
    profile_error_gco2e: float = 0.0
    meter_error_gco2e: float = 0.0
    intensity_error_gco2e: float = 0.0
    cost_eur: float = 0.0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(*map(add, values(self), values(other)))


NAMES = tuple(field.name for field in fields(Figures))
COUNTS = ("requests", "input_tokens", "output_tokens", "cached_input_tokens")

values = attrgetter(*NAMES)
"""All figures, in order of NAMES."""


def hour_of(when: datetime) -> datetime:
    """Return the start of the hour that contains `when`, UTC."""
    return when.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def hours(start_s: float, end_s: float) -> Iterator[tuple[datetime, float]]:
    """Yield each hour that a stretch of time touches, with its share of it; shares sum to 1.

    Args:
        start_s: Unix time, s.
        end_s: Unix time, s; if not after `start_s`, all of it is in the hour of `end_s`.
    """
    last = hour_of(datetime.fromtimestamp(end_s, UTC))
    start_s = max(start_s, (last - _MAX_HOURS * HOUR).timestamp())
    hour = hour_of(datetime.fromtimestamp(min(start_s, end_s), UTC))
    while hour < last:
        following = hour + HOUR
        overlap_s = following.timestamp() - max(start_s, hour.timestamp())
        yield hour, overlap_s / (end_s - start_s)
        hour = following
    before_s = max(start_s, last.timestamp())
    yield last, (end_s - before_s) / (end_s - start_s) if start_s < end_s else 1.0

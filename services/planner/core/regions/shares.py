"""The sender's half: the cleanest region first, never above a grant, the rest at home."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from services.planner.core.regions.offers import Offer

_MARGIN: Final = 1.02
"""Of what is left: demand grows until the grant arrives."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Work that a region would send to another one.

    Attributes:
        rate_rps: Requests per second.
        loss_gco2e: Carbon of a request at the sender's home above that at the receiver, gCO2e.
    """

    rate_rps: float
    loss_gco2e: float


@dataclass(frozen=True, slots=True)
class Shares:
    """Where a model's own demand goes, req/s.

    Attributes:
        sent_rps: By peer region; within its grant.
        wishes: Of each region worth sending to: what cleaner ones have not granted.
        home_rps: The rest.
    """

    sent_rps: Mapping[str, float] = field(default_factory=dict)
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    home_rps: float = 0.0


def shares(
    demand_rps: float, home: Offer, order: Sequence[Offer], granted_rps: Mapping[str, float]
) -> Shares:
    """Return where a model's own demand goes, and what to wish for.

    Args:
        demand_rps: All of the region's own demand.
        home: One more request at home.
        order: Regions worth sending to, cleanest first.
        granted_rps: Grants in force, by region; a region without one gets nothing.
    """
    left_rps, sent, wishes = max(demand_rps, 0.0), {}, {}
    for offer in order:
        loss_gco2e = home.carbon_gco2e - offer.carbon_gco2e
        wishes[offer.region] = Wish(left_rps * _MARGIN, loss_gco2e)
        sent[offer.region] = min(left_rps, max(granted_rps.get(offer.region, 0.0), 0.0))
        left_rps -= sent[offer.region]
    return Shares(sent, wishes, left_rps)

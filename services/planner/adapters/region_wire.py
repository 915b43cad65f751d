"""Messages between regions: every figure of a peer is a number, and within what can be."""

import math
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.regions.v1 import regions_pb2 as pb
from cinquefoil.regions.v1.records import OfferedHour
from services.kit.errors import InvalidArgument
from services.kit.rpc.figures import Bounds, check_figures
from services.kit.rpc.record_mapping import from_message, to_message
from services.kit.units import J_PER_KWH
from services.planner.core.accounting.moved import Moved, MovedKey
from services.planner.core.load_report import MOST_RPS
from services.planner.core.regions.exchange import MAX_RPS, Grant, HomeWish
from services.planner.core.regions.grants import VALID_S
from services.planner.core.regions.offers import MAX_INTENSITY_GCO2E_PER_KWH, Offer

_MAX_MODELS: Final = 1024
_MAX_J: Final = 1e9
"""Energy of a request: more than sixteen GPUs draw in an hour."""

_MAX_PUE: Final = 10.0
_MAX_HOURS: Final = 48
_WISH: Final[Bounds] = {
    "rate_rps": (0, MAX_RPS),
    "home_energy_j": (0, _MAX_J),
    "home_intensity_gco2e_per_kwh": (0, MAX_INTENSITY_GCO2E_PER_KWH),
    "waiting_rps": (0, MAX_RPS),
}
_HOUR: Final[Bounds] = {
    "intensity_gco2e_per_kwh": (0, MAX_INTENSITY_GCO2E_PER_KWH),
    "spare_rps": (0, MAX_RPS),
    "energy_j": (0, _MAX_J),
}
_OFFER: Final[Bounds] = {
    "energy_j": (0, _MAX_J),
    "intensity_gco2e_per_kwh": (0, MAX_INTENSITY_GCO2E_PER_KWH),
    "spare_rps": (0, MAX_RPS),
    "granted_rps": (0, MAX_RPS),
}


def request_to(region: str, wishes: Iterable[HomeWish]) -> pb.ExchangeRequest:
    """Return a region's wishes as a message."""
    return pb.ExchangeRequest(
        region=region,
        wishes=[
            pb.Wish(
                model=wish.model,
                rate_rps=wish.rate_rps,
                home_energy_j=wish.home.energy_j,
                home_intensity_gco2e_per_kwh=wish.home.intensity_gco2e_per_kwh,
                waiting_rps=wish.waiting_rps,
            )
            for wish in wishes
        ],
    )


def wishes_from(request: pb.ExchangeRequest) -> list[HomeWish]:
    """Return a peer's wishes.

    Raises:
        InvalidArgument: There are too many, or a figure cannot be.
    """
    _check_count("wishes", request.wishes)
    for index, wish in enumerate(request.wishes):
        check_figures(f"wishes[{index}]", wish, _WISH)
    return [
        HomeWish(
            wish.model,
            wish.rate_rps,
            Offer(request.region, wish.home_energy_j, wish.home_intensity_gco2e_per_kwh),
            wish.waiting_rps,
        )
        for wish in request.wishes
    ]


def response_to(region: str, grants: Iterable[Grant], *, draining: bool) -> pb.ExchangeResponse:
    """Return offers and grants as a message."""

    def offers() -> Iterator[pb.Offer]:
        for grant in grants:
            offer = pb.Offer(
                model=grant.model,
                energy_j=grant.offer.energy_j,
                intensity_gco2e_per_kwh=min(
                    grant.offer.intensity_gco2e_per_kwh, MAX_INTENSITY_GCO2E_PER_KWH
                ),
                spare_rps=grant.spare_rps,
                granted_rps=grant.rate_rps,
                hours=[to_message(each, pb.OfferedHour) for each in grant.hours[:_MAX_HOURS]],
            )
            offer.valid.FromTimedelta(timedelta(seconds=grant.valid_s))
            yield offer

    return pb.ExchangeResponse(region=region, offers=list(offers()), draining=draining)


def grants_from(peer: str, response: pb.ExchangeResponse) -> list[Grant]:
    """Return a peer's offers and grants.

    Raises:
        InvalidArgument: Another region answers, or a figure cannot be.
    """
    if response.region != peer:
        raise InvalidArgument.at("region", f"is {response.region!r}, not {peer!r}")
    _check_count("offers", response.offers)
    for index, offer in enumerate(response.offers):
        check_figures(f"offers[{index}]", offer, _OFFER)
        if len(offer.hours) > _MAX_HOURS:
            raise InvalidArgument.at(f"offers[{index}].hours", f"at most {_MAX_HOURS}")
        for at, hour in enumerate(offer.hours):
            check_figures(f"offers[{index}].hours[{at}]", hour, _HOUR)
    return [
        Grant(
            offer.model,
            Offer(peer, offer.energy_j, offer.intensity_gco2e_per_kwh),
            offer.spare_rps,
            offer.granted_rps,
            min(max(offer.valid.seconds + offer.valid.nanos / 1e9, 0.0), VALID_S),
            tuple(from_message(each, OfferedHour) for each in offer.hours),
        )
        for offer in response.offers
    ]


def moved_from(
    load: planner_pb2.RegionLoad, hour: datetime, home: str, window_s: float
) -> dict[MovedKey, Moved]:
    """Return the requests that a router saw answered, as far as they can be.

    Args:
        load: What it reports of a peer.
        hour: The present hour.
        home: This region.
        window_s: Length of the report's window, s.
    """
    most, found = int(MOST_RPS * window_s), {}
    for key, moved in (
        (
            MovedKey(hour, load.model, load.region, home),
            Moved(load.answered, load.answered_j, load.answered_gco2e),
        ),
        (
            MovedKey(hour, load.model, home, load.region),
            Moved(load.sent, load.sent_j, load.sent_gco2e),
        ),
    ):
        if moved.requests and 0 <= moved.energy_j < math.inf and 0 <= moved.carbon_gco2e < math.inf:
            requests = min(moved.requests, most)
            energy_j = min(moved.energy_j, requests * _MAX_J)
            most_gco2e = energy_j * _MAX_PUE * MAX_INTENSITY_GCO2E_PER_KWH / J_PER_KWH
            found[key] = Moved(requests, energy_j, min(moved.carbon_gco2e, most_gco2e))
    return found


def _check_count(name: str, found: Iterable[pb.Wish] | Iterable[pb.Offer]) -> None:
    models = [each.model for each in found]
    if len(models) > _MAX_MODELS or len(set(models)) < len(models):
        raise InvalidArgument.at(name, f"at most {_MAX_MODELS}, and one of each model")

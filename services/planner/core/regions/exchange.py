"""One region's part in the exchange: what it offers, wishes, grants and sends."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from cinquefoil.planner.v1.records import Forward
from cinquefoil.regions.v1.records import OfferedHour
from services.planner.core.regions.grants import HEADROOM, VALID_S, Granter, GrantsHeld
from services.planner.core.regions.offers import (
    Limits,
    Offer,
    PeerHours,
    believed,
    worth_sending_to,
)
from services.planner.core.regions.shares import Shares, Wish, shares

MAX_RPS: Final = 1e9


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model at home.

    Attributes:
        offer: One more request at home.
        capacity_rps: Work that the present plan can do within the objective, req/s.
        own_rps: Requests of this region's own clients, also those sent away, req/s.
        guests_rps: Work of other regions that the power limits of its sites allow, req/s.
        range_j: Least and most energy of a request on any hardware.
        waiting_rps: Own requests that can wait, and run here now, req/s.
        hours: Offers of the coming hours to requests that can wait.
    """

    offer: Offer
    capacity_rps: float
    own_rps: float
    guests_rps: float = math.inf
    range_j: tuple[float, float] = (0.0, math.inf)
    waiting_rps: float = 0.0
    hours: tuple[OfferedHour, ...] = ()


@dataclass(frozen=True, slots=True)
class HomeWish:
    """A wish of a peer.

    Attributes:
        model: The model.
        rate_rps: Requests that cannot wait, req/s.
        home: One more request at its home.
        waiting_rps: Requests that can wait, req/s.
    """

    model: str
    rate_rps: float
    home: Offer
    waiting_rps: float = 0.0


@dataclass(frozen=True, slots=True)
class Grant:
    """An offer to a peer.

    Attributes:
        model: The model.
        offer: One more request now.
        spare_rps: What is left, req/s.
        rate_rps: What is granted of it, req/s.
        valid_s: Time that the grant is valid, s.
        hours: Offers of the coming hours to requests that can wait.
    """

    model: str
    offer: Offer
    spare_rps: float
    rate_rps: float
    valid_s: float = VALID_S
    hours: tuple[OfferedHour, ...] = ()


@dataclass(eq=False)
class RegionExchange:
    """Grants given and held of every model.

    Attributes:
        name: This region.
        limits: Limits of what leaves home, by model; a model without them stays.
        figures: Returns the models at home.
        caps_rps: Most that is sent to a peer, of each model, req/s; missing: what it grants.
        round_trip_s: Network round trip by peer; a missing one cannot be reached.
        draining: Whether nothing is granted for now.
        waiting: Returns what is planned to run in each peer now of a model's requests that can
            wait, req/s by region.
    """

    name: str
    limits: Mapping[str, Limits]
    figures: Callable[[], Mapping[str, ModelFigures]]
    caps_rps: Mapping[str, float] = field(default_factory=dict)
    round_trip_s: dict[str, float] = field(default_factory=dict)
    draining: bool = False
    waiting: Callable[[str], Mapping[str, float]] = field(default=lambda _: {})
    offers: dict[str, dict[str, Offer]] = field(default_factory=dict)
    """Of peers, by model and region."""
    _hours: dict[str, dict[str, tuple[float, Grant]]] = field(default_factory=dict)
    _granters: dict[str, Granter] = field(default_factory=dict)
    _held: dict[str, GrantsHeld] = field(default_factory=dict)

    # ---- the receiver's half

    def answer(self, peer: str, wishes: Iterable[HomeWish], now_s: float) -> list[Grant]:
        """Grant a peer what its wishes deserve; offer every model that may leave home."""
        known, wished = self.figures(), {wish.model: wish for wish in wishes}
        return [
            self._granted(peer, model, known[model], wished.get(model), now_s)
            for model in self.limits
            if model in known
        ]

    def _granted(
        self, peer: str, model: str, at_home: ModelFigures, wish: HomeWish | None, now_s: float
    ) -> Grant:
        granter = self._granters.setdefault(model, Granter())
        rate_rps = 0.0
        if wish is not None:
            there = believed(wish.home, at_home.range_j)
            loss_gco2e = there.carbon_gco2e - at_home.offer.carbon_gco2e
            rate_rps = granter.grant(
                peer,
                Wish(0.0 if self.draining else _wished_rps(wish, at_home), loss_gco2e),
                capacity_rps=at_home.capacity_rps,
                own_rps=at_home.own_rps,
                guests_rps=at_home.guests_rps,
                now_s=now_s,
            )
        promised_rps = granter.reserved_rps(now_s)
        room_rps = min(at_home.capacity_rps - at_home.own_rps, at_home.guests_rps)
        spare_rps = max(0.0, room_rps - promised_rps)
        hours = () if self.draining else at_home.hours
        return Grant(model, at_home.offer, spare_rps, rate_rps, hours=hours)

    def promised_rps(self, peer: str, model: str, now_s: float) -> float:
        """Return what a peer may still send, req/s."""
        granter = self._granters.get(model)
        return 0.0 if granter is None else granter.held_rps(peer, now_s)

    # ---- the sender's half

    def wishes(self, peer: str, now_s: float) -> list[HomeWish]:
        """Return what to wish of a peer; a wish of 0 gives back what it had granted."""
        found = []
        for model, at_home in self.figures().items():
            if model in self.limits and peer in self.offers.get(model, {}):
                wish = self.shares(model, at_home, now_s).wishes.get(peer)
                rate_rps = wish.rate_rps if wish else 0.0
                waiting_rps = self.waiting(model).get(peer, 0.0)
                found.append(HomeWish(model, rate_rps, at_home.offer, waiting_rps))
        return found

    def learn(self, peer: str, grants: Iterable[Grant], since_s: float) -> None:
        """Take a peer's offers and grants.

        Args:
            peer: The peer.
            grants: What it answered; models that do not leave home are ignored.
            since_s: When it was requested, s.
        """
        cap_rps = self.caps_rps.get(peer, MAX_RPS)
        for grant in grants:
            if grant.model in self.limits:
                self.offers.setdefault(grant.model, {})[peer] = grant.offer
                self._hours.setdefault(grant.model, {})[peer] = since_s, grant
                rate_rps = min(grant.rate_rps, cap_rps)
                held = self._held.setdefault(grant.model, GrantsHeld())
                held.hold(peer, rate_rps, valid_s=grant.valid_s, since_s=since_s)

    def lose(self, peer: str) -> None:
        """Bring home what went to a peer that cannot be reached."""
        for model, held in self._held.items():
            held.drop(peer)
            self.offers.get(model, {}).pop(peer, None)
            self._hours.get(model, {}).pop(peer, None)

    def shares(self, model: str, at_home: ModelFigures, now_s: float) -> Shares:
        """Return where a model's own demand goes."""
        known = self.offers.get(model, {})
        reached = [
            Offer(name, offer.energy_j, offer.intensity_gco2e_per_kwh, self.round_trip_s[name])
            for name, offer in known.items()
            if name in self.round_trip_s
        ]
        limits = self.limits[model]
        order = worth_sending_to(at_home.offer, reached, limits, at_home.range_j)
        return shares(at_home.own_rps, at_home.offer, order, self.granted_rps(model, now_s))

    def granted_rps(self, model: str, now_s: float) -> dict[str, float]:
        """Return the grants of peers in force, req/s by region."""
        held = self._held.get(model)
        return {} if held is None else held.in_force(now_s)

    def forwards(self, now_s: float) -> list[Forward]:
        """Return what may be sent, each model's cleanest region first.

        Requests that can wait go within what the others leave of a grant.
        """
        return [
            forward
            for model, at_home in self.figures().items()
            if model in self.limits
            for forward in self._forwards(model, at_home, now_s)
        ]

    def _forwards(self, model: str, at_home: ModelFigures, now_s: float) -> Iterator[Forward]:
        sent_rps = self.shares(model, at_home, now_s).sent_rps
        granted_rps, waiting = self.granted_rps(model, now_s), self.waiting(model)
        for region in (*sent_rps, *(each for each in waiting if each not in sent_rps)):
            grant_rps = granted_rps.get(region, 0.0)
            left_rps = max(grant_rps - sent_rps.get(region, 0.0), 0.0)
            waiting_rps = min(max(waiting.get(region, 0.0), 0.0), left_rps)
            rate_rps = grant_rps - waiting_rps if region in sent_rps else 0.0
            if rate_rps > 0 or waiting_rps > 0:
                valid = self._held[model].valid(region, now_s)
                yield Forward(model, region, rate_rps, valid, waiting_rps)

    def places(self, model: str, now_s: float) -> Iterator[PeerHours]:
        """Yield the coming hours of peers that a model's waiting requests may run in.

        The network's latency does not matter to them.
        """
        limits, at_home = self.limits.get(model), self.figures().get(model)
        if limits is None or at_home is None:
            return
        sent_rps = self.shares(model, at_home, now_s).sent_rps
        granted_rps = self.granted_rps(model, now_s)
        for region, (since_s, grant) in self._hours.get(model, {}).items():
            if not grant.hours or region not in self.round_trip_s or not limits.permit(region):
                continue
            cap_rps = self.caps_rps.get(region, MAX_RPS)
            free_rps = grant.spare_rps + granted_rps.get(region, 0.0) - sent_rps.get(region, 0.0)
            hours = tuple(_believed_hour(each, at_home.range_j, cap_rps) for each in grant.hours)
            yield PeerHours(
                region,
                since_s - now_s,
                max(min(free_rps, hours[0].spare_rps), 0.0),
                hours,
                limits.weights.get(region, 1.0) / (1 - limits.min_saving),
            )


def _wished_rps(wish: HomeWish, at_home: ModelFigures) -> float:
    """Return all that a peer wishes; its waiting requests get what those of this region leave."""
    own_rps = at_home.own_rps + at_home.waiting_rps
    left_rps = max(at_home.capacity_rps * (1 - HEADROOM) - own_rps, 0.0)
    return min(wish.rate_rps + min(wish.waiting_rps, left_rps), MAX_RPS)


def _believed_hour(hour: OfferedHour, range_j: tuple[float, float], cap_rps: float) -> OfferedHour:
    offer = believed(Offer("", hour.energy_j, hour.intensity_gco2e_per_kwh), range_j)
    spare_rps = min(max(hour.spare_rps, 0.0), cap_rps)
    return OfferedHour(offer.intensity_gco2e_per_kwh, spare_rps, offer.energy_j)

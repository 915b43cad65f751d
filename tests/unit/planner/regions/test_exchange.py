"""Two regions exchange wishes and grants: where requests go, and what a lying peer can do."""

import math
from datetime import timedelta

import pytest

from cinquefoil.regions.v1 import regions_pb2 as pb
from cinquefoil.regions.v1.records import OfferedHour
from services.kit.errors import InvalidArgument
from services.planner.adapters.region_wire import (
    grants_from,
    request_to,
    response_to,
    wishes_from,
)
from services.planner.core.regions.exchange import HomeWish, ModelFigures, RegionExchange
from services.planner.core.regions.offers import Limits, Offer, rate_within_power

LIMITS = {"m": Limits(("*",))}


def region(
    name: str, intensity: float, own_rps: float, limits: dict[str, Limits] | None = None
) -> RegionExchange:
    figures = {"m": ModelFigures(Offer(name, 10.0, intensity), 100.0, own_rps)}
    return RegionExchange(name, LIMITS if limits is None else limits, lambda: figures)


def exchanged(sender: RegionExchange, receiver: RegionExchange, now_s: float) -> None:
    """Carry a whole exchange over the wire."""
    request = request_to(sender.name, sender.wishes(receiver.name, now_s))
    sent = pb.ExchangeRequest.FromString(request.SerializeToString())
    grants = receiver.answer(sender.name, wishes_from(sent), now_s)
    response = response_to(receiver.name, grants, draining=receiver.draining)
    received = pb.ExchangeResponse.FromString(response.SerializeToString())
    sender.learn(receiver.name, grants_from(receiver.name, received), now_s)


def test_the_cleaner_region_gets_what_it_has_room_for() -> None:
    """Dirty sends up to clean's room beside its own demand; clean sends nothing."""
    dirty, clean = region("dirty", 500.0, 60.0), region("clean", 50.0, 55.0)
    for each, other in ((dirty, clean), (clean, dirty)):
        each.round_trip_s[other.name] = 0.02
    for step in range(5):
        exchanged(dirty, clean, 5.0 * step)
        exchanged(clean, dirty, 5.0 * step)

    (forward,) = dirty.forwards(20.0)
    assert (forward.model, forward.region) == ("m", "clean")
    assert forward.rate_rps == pytest.approx(40.0)
    assert clean.forwards(20.0) == []
    assert dirty.forwards(50.1) == []


def test_drained_unreachable_and_distant_regions_get_nothing() -> None:
    """A drain ends grants, a cut or an unmeasured network brings everything home."""
    dirty, clean = region("dirty", 500.0, 60.0), region("clean", 50.0, 55.0)
    exchanged(dirty, clean, 0.0)
    assert dirty.wishes("clean", 0.0)[0].rate_rps == 0.0
    dirty.round_trip_s["clean"] = 0.02
    for now_s in (1.0, 2.0):
        exchanged(dirty, clean, now_s)
    assert dirty.forwards(2.0)
    clean.draining = True
    exchanged(dirty, clean, 3.0)
    assert dirty.forwards(3.0) == []
    clean.draining = False
    exchanged(dirty, clean, 40.0)
    assert dirty.forwards(40.0)
    dirty.lose("clean")
    assert dirty.forwards(40.0) == []


def test_data_stays_where_it_must() -> None:
    """A model without regions is neither offered nor wished."""
    dirty, clean = region("dirty", 500.0, 60.0, {}), region("clean", 50.0, 55.0)
    dirty.round_trip_s["clean"] = 0.02
    for now_s in (0.0, 1.0, 2.0):
        exchanged(dirty, clean, now_s)

    assert dirty.forwards(2.0) == []
    assert clean.promised_rps("dirty", "m", 2.0) == 0.0


def test_a_peer_that_lies_gets_no_more_than_there_is() -> None:
    """Whatever a peer wishes or claims to lose, all promises fit beside own demand."""
    clean = region("clean", 50.0, 55.0)
    request = request_to("liar", ())
    request.wishes.add(model="m", rate_rps=1e9, home_energy_j=1e9, home_intensity_gco2e_per_kwh=2e3)
    (grant,) = clean.answer("liar", wishes_from(request), 0.0)

    assert grant.rate_rps == pytest.approx(40.0)


def test_a_peer_that_grants_too_much_is_capped() -> None:
    """`max_rps` bounds what a peer can attract by free energy and endless grants."""
    dirty = region("dirty", 500.0, 60.0)
    dirty.caps_rps = {"liar": 5.0}
    dirty.round_trip_s["liar"] = 0.01
    response = pb.ExchangeResponse(region="liar")
    response.offers.add(model="m", granted_rps=1e9, valid={"seconds": 10**9})
    dirty.learn("liar", grants_from("liar", response), 0.0)

    (forward,) = dirty.forwards(0.0)
    assert forward.rate_rps == 5.0
    assert forward.valid == timedelta(seconds=30)


def test_requests_that_can_wait_go_within_what_the_others_leave_of_a_grant() -> None:
    """Own demand first: of 40 req/s 30 are used by others, and those that wait get the rest."""
    dirty, clean = region("dirty", 500.0, 30.0), region("clean", 50.0, 55.0)
    dirty.round_trip_s["clean"] = 0.02
    dirty.waiting = lambda _: {"clean": 20.0}
    for now_s in (0.0, 1.0, 2.0):
        exchanged(dirty, clean, now_s)

    (forward,) = dirty.forwards(2.0)
    assert forward.rate_rps == pytest.approx(30.0)
    assert forward.waiting_rps == pytest.approx(10.0)
    assert forward.rate_rps + forward.waiting_rps <= dirty.granted_rps("m", 2.0)["clean"]


def test_own_waiting_work_goes_before_that_of_peers() -> None:
    """Of 40 req/s of room 35 run own work that can wait: a peer's gets 5, other requests all."""
    clean = region("clean", 50.0, 55.0)
    clean.figures = lambda: {
        "m": ModelFigures(Offer("clean", 10.0, 50.0), 100.0, 55.0, waiting_rps=35.0)
    }
    home = Offer("dirty", 10.0, 500.0)

    (waits,) = clean.answer("dirty", [HomeWish("m", 0.0, home, 20.0)], 0.0)
    (cannot,) = clean.answer("dirty", [HomeWish("m", 20.0, home)], 0.0)

    assert waits.rate_rps == pytest.approx(5.0)
    assert cannot.rate_rps == pytest.approx(20.0)


def test_coming_hours_count_where_the_data_may_be_and_a_router_answers() -> None:
    """Hours cross the wire; claims are bounded; a lost, drained or forbidden region offers none."""
    dirty, clean = region("dirty", 500.0, 60.0), region("clean", 50.0, 55.0)
    hours = (OfferedHour(50.0, 30.0, 10.0), OfferedHour(20.0, 1e8, 0.0))
    range_j = (1.0, 100.0)
    clean.figures = lambda: {
        "m": ModelFigures(Offer("clean", 10.0, 50.0), 100.0, 55.0, hours=hours)
    }
    home = ModelFigures(Offer("dirty", 10.0, 500.0), 100.0, 60.0, range_j=range_j)
    dirty.figures = lambda: {"m": home}
    dirty.caps_rps = {"clean": 50.0}
    exchanged(dirty, clean, 0.0)
    assert list(dirty.places("m", 0.0)) == []
    dirty.round_trip_s["clean"] = 9.0  # too long for others
    exchanged(dirty, clean, 1.0)

    (place,) = dirty.places("m", 4.0)

    assert (place.region, place.since_s, place.now_rps) == ("clean", -3.0, 30.0)
    assert place.hours == (OfferedHour(50.0, 30.0, 10.0), OfferedHour(20.0, 50.0, 1.0))
    assert dirty.forwards(4.0) == []
    dirty.limits = {"m": Limits(("eu-*",))}
    assert list(dirty.places("m", 4.0)) == []
    dirty.limits = LIMITS
    clean.draining = True
    exchanged(dirty, clean, 5.0)
    assert list(dirty.places("m", 5.0)) == []


def test_more_hours_than_two_days_are_refused() -> None:
    response = pb.ExchangeResponse(region="a", offers=[pb.Offer(model="m")])
    for _ in range(49):
        response.offers[0].hours.add()
    with pytest.raises(InvalidArgument, match=r"hours.*at most 48"):
        grants_from("a", response)


@pytest.mark.parametrize("rate_rps", [float("nan"), -1.0, 1e10, float("inf")])
def test_figures_that_cannot_be_are_refused(rate_rps: float) -> None:
    """No number, negative, or beyond bounds: the whole message is refused, by field."""
    request = pb.ExchangeRequest(region="a", wishes=[pb.Wish(model="m", rate_rps=rate_rps)])
    with pytest.raises(InvalidArgument, match="wishes"):
        wishes_from(request)
    response = pb.ExchangeResponse(region="a", offers=[pb.Offer(model="m", granted_rps=rate_rps)])
    with pytest.raises(InvalidArgument, match="offers"):
        grants_from("a", response)


def test_answers_of_another_region_and_repeated_models_are_refused() -> None:
    """A peer speaks for itself, once for each model."""
    with pytest.raises(InvalidArgument, match="region"):
        grants_from("a", pb.ExchangeResponse(region="b"))
    twice = pb.ExchangeRequest(region="a", wishes=[pb.Wish(model="m"), pb.Wish(model="m")])
    with pytest.raises(InvalidArgument, match="one of each"):
        wishes_from(twice)


def test_a_power_limit_ends_what_comes_from_others() -> None:
    """Of 100 W less 5 %, 2 W are left: at 0.5 J 4 req/s beside the 3 that come already."""
    assert rate_within_power([(100.0, 93.0)], 0.5, 3.0) == pytest.approx(7.0)
    assert rate_within_power([(100.0, 99.0)], 0.5, 3.0) == 0.0
    assert rate_within_power([(100.0, 99.0), (None, 1e6)], 0.5, 3.0) == math.inf

    dirty, clean = region("dirty", 500.0, 60.0), region("clean", 50.0, 55.0)
    dirty.round_trip_s["clean"] = 0.02
    clean.figures = lambda: {"m": ModelFigures(Offer("clean", 10.0, 50.0), 100.0, 55.0, 7.0)}
    for now_s in (0.0, 1.0, 2.0):
        exchanged(dirty, clean, now_s)
    (forward,) = dirty.forwards(2.0)
    assert forward.rate_rps == pytest.approx(7.0)

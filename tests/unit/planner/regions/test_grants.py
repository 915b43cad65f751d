"""Grants between regions: limits that hold for any wishes, at any delay."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.regions.grants import (
    ON_THE_WAY_S,
    VALID_S,
    Granter,
    GrantsHeld,
    allot,
)
from services.planner.core.regions.offers import (
    IntensityRecord,
    Limits,
    Offer,
    believed,
    worth_sending_to,
)
from services.planner.core.regions.shares import Wish, shares

RATES = st.floats(0, 1e4)
WISHES = st.builds(Wish, RATES, st.floats(-10, 10))
STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), WISHES, RATES, st.floats(0.1, 40)), min_size=1, max_size=40
)
HOME = Offer("home", 10.0, 500.0)
RANGE_J = (1.0, 100.0)


def offers() -> st.SearchStrategy[list[Offer]]:
    one = st.builds(
        Offer,
        st.sampled_from(["eu-n", "eu-s", "us-w", "ap"]),
        st.floats(0, 1e6),
        st.floats(0, 1e6),
        st.floats(0, 0.3),
    )
    return st.lists(one, max_size=4, unique_by=lambda offer: offer.region)


@given(RATES, st.dictionaries(st.sampled_from("abcd"), WISHES))
def test_room_is_divided_by_loss(room_rps: float, wishes: dict[str, Wish]) -> None:
    """No more than the room, no more than wished; whose loss is least comes last."""
    allotted = allot(room_rps, wishes)

    assert sum(allotted.values()) <= room_rps * (1 + 1e-9)
    assert all(allotted[name] <= wishes[name].rate_rps for name in wishes)
    ranked = sorted(wishes, key=lambda name: (-wishes[name].loss_gco2e, name))
    for better, worse in pairwise(ranked):
        assert allotted[better] == wishes[better].rate_rps or allotted[worse] <= 1e-9


@given(st.floats(0, 1e4), STEPS)
def test_promises_never_exceed_what_own_demand_leaves(
    capacity_rps: float, steps: list[tuple[str, Wish, float, float]]
) -> None:
    """At each grant, all that may still be used fits, or the grant adds nothing to it."""
    granter, now_s = Granter(), 0.0
    for region, wish, own_rps, pause_s in steps:
        now_s += pause_s
        before = granter.reserved_rps(now_s)
        rate = granter.grant(region, wish, capacity_rps=capacity_rps, own_rps=own_rps, now_s=now_s)
        room = max(0.0, capacity_rps * 0.95 - own_rps)
        assert 0 <= rate <= wish.rate_rps + 1e-6
        assert granter.reserved_rps(now_s) <= max(before, room) * (1 + 1e-9) + 1e-6


def test_a_lower_grant_frees_room_when_the_earlier_one_expires() -> None:
    """A promise stays reserved: another region gets its room after the expiry, not before."""
    granter = Granter()
    much, little = Wish(90.0, 1.0), Wish(10.0, 1.0)
    where = {"capacity_rps": 200.0, "own_rps": 90.0}
    assert granter.grant("a", much, **where, now_s=0.0) == 90.0
    assert granter.grant("a", little, **where, now_s=1.0) == 10.0
    assert granter.grant("b", much, **where, now_s=2.0) == pytest.approx(10.0)
    late_s = VALID_S + ON_THE_WAY_S
    assert granter.grant("a", little, **where, now_s=late_s) == 10.0
    assert granter.grant("b", much, **where, now_s=late_s) == pytest.approx(90.0)


def test_the_needier_region_replaces_the_one_that_came_first() -> None:
    """A region that loses more gets the room, little by little."""
    granter, needier = Granter(), []
    for step in range(600):
        for region, loss in (("first", 1.0), ("needier", 2.0)):
            if region == "first" or step > 2:
                rate = granter.grant(
                    region, Wish(100.0, loss), capacity_rps=100.0, own_rps=15.0, now_s=5.0 * step
                )
        needier.append(rate)
    assert needier[2] == 80.0
    assert needier[3] == 0.0
    assert needier[-1] > 60.0


@given(offers(), RATES, st.dictionaries(st.sampled_from(["eu-n", "us-w", "ap"]), RATES))
def test_senders_keep_grants_residency_and_latency(
    peers: list[Offer], demand_rps: float, granted: dict[str, float]
) -> None:
    """No region gets more than it granted, nor what may not be there; nothing is lost."""
    limits = Limits(("eu-*", "ap"), 0.1)
    order = worth_sending_to(HOME, peers, limits, RANGE_J)
    found = shares(demand_rps, HOME, order, granted)

    assert sum(found.sent_rps.values()) + found.home_rps == pytest.approx(demand_rps)
    assert found.home_rps >= -1e-9
    latency = {offer.region: offer.extra_latency_s for offer in peers}
    for region, sent in found.sent_rps.items():
        assert sent <= granted.get(region, 0.0)
        assert region != "us-w"
        assert latency[region] <= 0.1
    clean = [offer.carbon_gco2e for offer in order]
    assert clean == sorted(clean)
    assert all(carbon < HOME.carbon_gco2e * 0.95 for carbon in clean)


def test_weights_change_the_order_and_whether_a_move_is_worth_it() -> None:
    """A weighted region counts as dirtier or cleaner than it is; what it emits stays as it is."""
    north, south = Offer("north", 10.0, 100.0), Offer("south", 10.0, 200.0)

    def order(weights: dict[str, float]) -> list[str]:
        limits = Limits(weights=weights)
        found = worth_sending_to(HOME, [north, south], limits, RANGE_J)
        return [offer.region for offer in found]

    assert order({}) == ["north", "south"]
    assert order({"north": 3.0}) == ["south", "north"]
    assert order({"north": 6.0}) == ["south"]
    assert order({"south": 0.25}) == ["south", "north"]


def test_claims_beyond_physics_are_bounded() -> None:
    """A region that claims free requests is believed as far as physics goes, and no further."""
    assert believed(Offer("liar", 0.0, -5.0), RANGE_J) == Offer("liar", 1.0, 0.0)
    assert believed(Offer("liar", 1e9, 1e9), RANGE_J) == Offer("liar", 100.0, 2_000.0)


def test_grants_count_from_the_question_and_expire() -> None:
    """No clock of a peer counts, nor a validity beyond 30 s; a silent peer loses its share."""
    held = GrantsHeld()
    held.hold("a", 5.0, valid_s=1e9, since_s=100.0)
    assert held.in_force(129.9) == {"a": 5.0}
    assert held.in_force(130.0) == {}
    held.hold("a", 5.0, valid_s=30.0, since_s=130.0)
    held.drop("a")
    assert held.in_force(131.0) == {}


def test_old_news_give_way_to_yesterday() -> None:
    """Up to 6 h the last value counts, then yesterday's same hour, then none."""
    record = IntensityRecord()
    for hour in range(48):
        assert record.in_force("z", float(hour), 0.0, 3600.0 * hour) == hour
    assert record.in_force("z", 47.0, 21_600.0, 3600.0 * 47 + 21_600) == 47.0
    assert record.in_force("z", 47.0, 7 * 3600.0, 3600.0 * 54) == 30.0
    assert record.in_force("z", 47.0, 43 * 3600.0, 3600.0 * 90) is None
    assert record.in_force("new", 1.0, 7 * 3600.0, 0.0) is None

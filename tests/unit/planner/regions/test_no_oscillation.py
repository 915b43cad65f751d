"""Regions that exchange old news settle: shares do not swing while grids and demand stay."""

from collections import deque
from itertools import pairwise, permutations
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.planner.core.regions import grants
from services.planner.core.regions.exchange import HomeWish, ModelFigures, RegionExchange
from services.planner.core.regions.offers import Limits, Offer

STEP_S: Final = 5.0
CAPACITY_RPS: Final = 100.0
STEPS: Final = 240
MOST_CHANGES: Final = 5.0
"""Of demand: out (1), on to a cleaner region that frees room (2), and once back (2)."""

Course = list[dict[str, float]]
REGION = st.tuples(st.floats(10, 900), st.floats(5, 20), st.floats(5, 95))
"""Intensity, gCO2e/kWh; energy of a request, J; own demand, req/s."""


def courses(regions: list[tuple[float, float, float]], late: int) -> tuple[list[Course], float]:
    """Return each region's shares by step, and the most work of one, of its capacity.

    Args:
        regions: Grid, energy and demand of each.
        late: Steps until wishes arrive.
    """
    figures = [
        {"m": ModelFigures(Offer(str(here), energy_j, intensity), CAPACITY_RPS, own_rps)}
        for here, (intensity, energy_j, own_rps) in enumerate(regions)
    ]
    exchanges = [
        RegionExchange(str(here), {"m": Limits()}, lambda own=own: own)  # type: ignore[misc]
        for here, own in enumerate(figures)
    ]
    pairs = list(permutations(range(len(regions)), 2))
    for here, there in pairs:
        exchanges[here].round_trip_s[str(there)] = 0.01
    on_the_way: deque[list[tuple[int, int, float, list[HomeWish]]]] = deque()
    found: list[Course] = [[] for _ in regions]
    worst = 0.0
    for step in range(STEPS):
        now_s = step * STEP_S
        sent = [(*pair, now_s, exchanges[pair[0]].wishes(str(pair[1]), now_s)) for pair in pairs]
        on_the_way.append(sent)
        for here, there, since_s, wishes in on_the_way.popleft() if len(on_the_way) > late else ():
            answer = exchanges[there].answer(str(here), wishes, now_s)
            exchanges[here].learn(str(there), answer, since_s)
        load = [0.0] * len(regions)
        for here, own in enumerate(figures):
            shares = exchanges[here].shares("m", own["m"], now_s)
            load[here] += shares.home_rps
            for region, rate_rps in shares.sent_rps.items():
                load[int(region)] += rate_rps
            found[here].append({k: v / own["m"].own_rps for k, v in shares.sent_rps.items()})
        worst = max(worst, *(each / CAPACITY_RPS for each in load))
    return found, worst


def changes(course: Course) -> float:
    """Return how much moved, of the demand: from home 1, between two other regions 2."""
    regions = {region for step in course for region in step}
    return sum(
        abs(after.get(region, 0.0) - before.get(region, 0.0))
        for before, after in pairwise(course)
        for region in regions
    )


@settings(max_examples=6)
@given(st.lists(REGION, min_size=2, max_size=3), st.integers(0, 4))
def test_shares_settle(regions: list[tuple[float, float, float]], late: int) -> None:
    """Any grids, demands and ages of news: the demand moves a few times, and nowhere too much."""
    found, worst = courses(regions, late)

    assert all(changes(course) <= MOST_CHANGES for course in found)
    assert worst <= 1.0 + 1e-9


def test_without_promises_that_stay_reserved_they_would_swing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same two senders and one receiver, where what is promised counts as free: overload."""
    regions = [(900.0, 10.0, 90.0), (800.0, 10.0, 90.0), (20.0, 10.0, 5.0)]
    settled, kept = courses(regions, 3)
    monkeypatch.setattr(grants.Granter, "reserved_rps", lambda *_: 0.0)
    swinging, worst = courses(regions, 3)

    assert kept <= 1.0
    assert worst > 1.2 or max(map(changes, swinging)) > 2 * max(map(changes, settled))

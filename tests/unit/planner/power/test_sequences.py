"""A site in virtual time: planner's shares and agents' control, for any sequence of events."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from services.gpuagent.power_cap.core.control import PowerControl
from services.kit.config import Site
from services.planner.core.power.budgets import PowerBudget, PowerBudgets
from services.planner.core.power.reachable import lowest_wall_w
from services.planner.core.power.shares import NodeDraw, shares_w, site_wall_w

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
LOOK_S, PART_S, PARTS = 0.5, 20, 6
AHEAD = timedelta(seconds=3)
IDLE_W, ACTIVE_W, HOST_W, PUE = 400.0, 1600.0, 100.0, 1.2
ALLOWED_S = 2.0
SHARE_S = 1.0  # until the share of an agent that comes back is in force


@dataclass
class Node:
    """A node whose power follows load and clock; its meter averages a second, shares come late."""

    name: str
    loads: list[float]
    exponent: float
    away: tuple[float, float]
    control: PowerControl = field(default_factory=lambda: PowerControl(0.1, (0.2 * 2000.0, 2000.0)))
    share_w: float = math.inf
    coming_w: float = math.inf
    meter: deque[float] = field(default_factory=lambda: deque(maxlen=2))

    def is_away(self, at_s: float) -> bool:
        return self.away[0] <= at_s < self.away[1]

    def step(self, at_s: float) -> float:
        throttle = self.control.throttle
        load = self.loads[int(at_s // PART_S) % PARTS]
        power_w = IDLE_W + ACTIVE_W * load * math.pow(throttle.clock, self.exponent)
        power_w = min(power_w, max(throttle.limit_w, IDLE_W))
        self.meter.append(power_w)
        seen_w = sum(self.meter) / len(self.meter)
        self.control.look(at_s, seen_w, IDLE_W, self.share_w, throttle.clock)
        self.share_w = self.coming_w
        return power_w

    def draw(self, at_s: float) -> NodeDraw:
        seen_w = sum(self.meter) / len(self.meter)
        away = self.is_away(at_s)
        return NodeDraw(self.name, PUE, HOST_W, IDLE_W, IDLE_W + ACTIVE_W, seen_w, fixed=away)


EVENTS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(1, 60), st.floats(0.35, 1.0), st.booleans()),
    max_size=5,
)
LOADS = st.lists(st.floats(0.1, 1.0), min_size=PARTS, max_size=PARTS)


@example(events=[(0, 3, 0.5, False)], loads=[[1.0] * PARTS] * 3, exponent=1.0, away=(0.0, 1.0))
@given(
    events=EVENTS,
    loads=st.lists(LOADS, min_size=3, max_size=3),
    exponent=st.floats(1.0, 3.0),
    away=st.tuples(st.floats(0, 100), st.floats(0, 40)),
)
def test_a_site_stays_below_whatever_limit_is_in_force(
    events: list[tuple[int, int, float, bool]],
    loads: list[list[float]],
    exponent: float,
    away: tuple[float, float],
) -> None:
    """Events that overlap, follow each other or are cancelled, bursts, and an agent that leaves.

    Above the limit for at most ALLOWED_S at a time, but for power that nothing can lower. Others
    that make room for an agent that is away have twice as long, as they follow its meter in two
    steps; an agent that comes back has as long again, once its share is in force.
    """
    most_w = PUE * 3 * (HOST_W + IDLE_W + ACTIVE_W)
    budgets = PowerBudgets({"hall": Site(nodes=("n*",))})
    known = [
        PowerBudget(
            "hall",
            share * most_w,
            f"grid event {n}",
            BEGIN + timedelta(seconds=start),
            BEGIN + timedelta(seconds=start + length),
        )
        for n, (start, length, share, _) in enumerate(events)
    ]
    gone = (away[0], away[0] + away[1])
    nodes = [
        Node(f"n{i}", each, exponent, gone if not i else (0, 0)) for i, each in enumerate(loads)
    ]
    above, longest = 0, 0.0
    for step in range(int(PARTS * PART_S / LOOK_S)):
        at_s = step * LOOK_S
        now = BEGIN + timedelta(seconds=at_s)
        wall_w = sum(PUE * (HOST_W + node.step(at_s)) for node in nodes)
        cancelled = at_s >= 60
        budgets.set_events(
            each for each, event in zip(known, events, strict=True) if not (cancelled and event[3])
        )
        draws = [node.draw(at_s) for node in nodes]
        above = 0 if at_s == math.ceil(2 * gone[1]) / 2 + SHARE_S else above
        present = budgets.in_force(now).get("hall")
        if present is None:
            above = 0
        else:
            reachable_w = max(present.limit_w, lowest_wall_w(draws))
            above = above + 1 if wall_w > 1.002 * reachable_w else 0
            without_one = gone[0] <= at_s < gone[1] + SHARE_S
            longest = max(longest, above / 2 if without_one else above)
        ahead = budgets.in_force(now, now + AHEAD).get("hall")
        shares = {} if ahead is None else shares_w(ahead.limit_w, draws)
        for node in nodes:
            if not node.is_away(at_s):  # an agent without a planner keeps its last share
                node.coming_w = shares.get(node.name, math.inf)
    assert longest * LOOK_S <= ALLOWED_S


@given(
    limit_w=st.floats(0, 1e5),
    draws=st.lists(
        st.tuples(st.floats(1, 3), st.floats(0, 500), st.floats(0, 1), st.booleans()), max_size=6
    ),
)
def test_shares_add_up_to_the_budget_or_to_idle_power(
    limit_w: float, draws: list[tuple[float, float, float, bool]]
) -> None:
    """No node is given less than its idle power, and all together no more than the budget."""
    nodes = [
        NodeDraw(f"n{i}", pue, host_w, 100.0, 500.0, 100.0 + 400.0 * used, fixed=fixed)
        for i, (pue, host_w, used, fixed) in enumerate(draws)
    ]
    found = shares_w(limit_w, nodes)
    free = [node for node in nodes if not node.fixed]
    assert all(found[node.name] >= node.idle_w for node in free)
    wall_w = sum(node.pue * (node.host_w + found[node.name]) for node in free)
    fixed_w = site_wall_w([node for node in nodes if node.fixed])
    assert wall_w + fixed_w <= max(limit_w, lowest_wall_w(nodes)) * (1 + 1e-9) + 1e-6

"""Control of a node's power below a cap, in virtual time."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.power_cap.core.control import NONE, PowerControl

LOOK_S = 0.5


@dataclass(slots=True)
class Node:
    """A node whose power follows its clock and its boards' limits; its meter averages a second.

    Attributes:
        idle_w, active_w: Power without work, and above that at the highest clock.
        exponent: By which active power follows the clock.
        floor: Lowest clock.
        limits: Whether boards have power limits; the least is 30 % of the highest power.
    """

    idle_w: float = 400.0
    active_w: float = 1600.0
    exponent: float = 2.0
    floor: float = 0.15
    limits: bool = True
    load: Callable[[float], float] = lambda _: 1.0
    control: PowerControl = field(init=False)
    _meter: deque[float] = field(default_factory=lambda: deque(maxlen=2))

    def __post_init__(self) -> None:
        most_w = self.idle_w + self.active_w
        limits_w = (0.3 * most_w, most_w) if self.limits else None
        self.control = PowerControl(self.floor, limits_w)

    def power_w(self, at_s: float) -> float:
        throttle = self.control.throttle
        drawn_w = self.active_w * self.load(at_s) * math.pow(throttle.clock, self.exponent)
        return min(self.idle_w + drawn_w, max(throttle.limit_w, self.idle_w))

    def run(self, cap_w: Callable[[float], float], until_s: float) -> Iterator[tuple[float, float]]:
        """Yield (time, power) of each look."""
        for step in range(int(until_s / LOOK_S)):
            at_s = step * LOOK_S
            power_w = self.power_w(at_s)
            self._meter.append(power_w)
            seen_w = sum(self._meter) / len(self._meter)
            self.control.look(at_s, seen_w, self.idle_w, cap_w(at_s), self.control.throttle.clock)
            yield at_s, power_w


EXPONENTS = st.floats(0.7, 3.0)
SHARES = st.floats(0.05, 0.95)


@given(exponent=EXPONENTS, share=SHARES, load=st.floats(0.1, 1.0), limits=st.booleans())
def test_a_sudden_cap_is_kept_within_five_seconds(
    exponent: float, share: float, load: float, *, limits: bool
) -> None:
    """Five seconds after a cap the power is below it and stays there, or all is at its least."""
    node = Node(exponent=exponent, limits=limits, load=lambda _: load)
    cap_w = node.idle_w + share * node.active_w
    drawn = list(node.run(lambda at_s: cap_w if at_s >= 5 else math.inf, 120.0))
    late = [power_w for at_s, power_w in drawn if at_s >= 10]
    assert all(power_w <= cap_w for power_w in late) or node.control.exhausted


@given(exponent=EXPONENTS, share=st.floats(0.2, 0.95), load=st.floats(0.3, 1.0))
def test_steady_work_comes_to_rest(exponent: float, share: float, load: float) -> None:
    """After a minute under a cap nothing changes any more, and little of the cap is left unused."""
    node = Node(exponent=exponent, load=lambda _: load)
    cap_w = node.idle_w + share * node.active_w
    states = [node.control.throttle for _ in node.run(lambda _: cap_w, 180.0)]
    assert len(set(states[120:])) <= 1 + (states[-1] == NONE)
    used_w = node.power_w(0.0)
    assert used_w <= cap_w
    assert used_w >= 0.85 * min(cap_w, node.idle_w + load * node.active_w)


@given(
    exponent=st.floats(1.0, 3.0),
    share=st.floats(0.2, 0.9),
    loads=st.lists(st.floats(0.2, 1.0), min_size=4, max_size=4),
)
def test_never_above_for_more_than_two_seconds(
    exponent: float, share: float, loads: list[float]
) -> None:
    """Whatever the load does, power is above the cap for at most two seconds at a time."""
    node = Node(exponent=exponent, load=lambda at_s: loads[int(at_s // 30) % 4])
    cap_w = node.idle_w + share * node.active_w
    above, longest = 0, 0
    for _, power_w in node.run(lambda _: cap_w, 120.0):
        above = above + 1 if power_w > cap_w * 1.001 else 0
        longest = max(longest, above)
    assert longest * LOOK_S <= 2.0


def test_all_comes_back_in_the_opposite_order() -> None:
    """Clocks go down before power limits, and power limits are given back before clocks."""
    node = Node(exponent=0.7)
    order: list[str] = []
    before = NONE
    for at_s, _ in node.run(lambda at_s: 700.0 if 5 <= at_s < 60 else math.inf, 200.0):
        now = node.control.throttle
        if now.clock != before.clock:
            order.append("clock" if at_s < 60 else "clock back")
        elif now.limit_w != before.limit_w:
            order.append("limit" if at_s < 60 else "limit back")
        before = now
    assert list(dict.fromkeys(order)) == ["clock", "limit", "limit back", "clock back"]
    assert node.control.throttle == NONE
    assert not node.control.exhausted

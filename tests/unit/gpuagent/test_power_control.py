"""Control of a node's power below a cap, in virtual time."""

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.power_cap.core.control import NONE, PowerControl
from services.kit.hardware import gpu_types

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


@dataclass(slots=True)
class Queue:
    """Batches that arrive at random at the segments of two A100s: busy for a part of the time.

    A lower clock makes each batch longer, so that GPUs are busy for more of the time. What would
    wait for longer than PATIENCE_S is refused.

    Attributes:
        used: Share of the time that segments are busy at the highest clock.
        draw: Source of arrivals.
    """

    used: float
    draw: random.Random
    waiting_s: float = 0.0  # work at the highest clock

    SEGMENTS = 6
    BUSY_W = 100.0
    BATCH_S = 0.05
    BASE_W = 110.0
    TICK_S = 0.1
    PATIENCE_S = 0.3
    CURVE = gpu_types.load("a100-40gb").clock_curve

    def mean_w(self) -> float:
        """Return the active power at the highest clock, W."""
        return self.used * self.SEGMENTS * self.BUSY_W

    def energy_j(self, clock: float) -> float:
        """Return the energy of a tick, J."""
        expected = self.used * self.SEGMENTS * self.TICK_S / self.BATCH_S
        self.waiting_s += self.BATCH_S * _poisson(expected, self.draw)
        self.waiting_s = min(self.waiting_s, self.SEGMENTS * self.PATIENCE_S)
        stretch = self.CURVE.stretch(1.0, clock)
        done_s = min(self.waiting_s, self.SEGMENTS * self.TICK_S / stretch)
        self.waiting_s -= done_s
        busy_w = self.BUSY_W * self.CURVE.power_ratio(clock)
        return self.BASE_W * self.TICK_S + done_s * stretch * busy_w

    def run(self, cap_w: float, length_s: int) -> Iterator[tuple[float, float]]:
        """Yield (power, clock) of each second from the cap on, which comes after ten."""
        control = PowerControl(0.15, None)
        halves = deque([self.BASE_W / 2] * 2, maxlen=2)
        for half in range(2 * (length_s + 10)):
            at_s = LOOK_S * half
            halves.append(sum(self.energy_j(control.throttle.clock) for _ in range(5)))
            limit_w = cap_w if at_s >= 10 else math.inf
            control.look(at_s, sum(halves), self.BASE_W, limit_w, control.throttle.clock)
            if at_s >= 10 and half % 2:
                yield sum(halves), control.throttle.clock


def _poisson(expected: float, draw: random.Random) -> int:
    limit, product, count = math.exp(-expected), draw.random(), 0
    while product > limit:
        product, count = product * draw.random(), count + 1
    return count


@pytest.mark.parametrize("share", [0.8, 0.6, 0.5])
@pytest.mark.parametrize("used", [0.3, 0.5, 0.8])
def test_random_load_is_below_the_cap_in_nearly_every_second(used: float, share: float) -> None:
    """Of 120 s after a sudden cap, few are above it, two in a row at most; clocks come to rest."""
    for seed in range(4):
        queue = Queue(used, random.Random(seed))  # arrivals, no secret
        cap_w = queue.BASE_W + share * queue.mean_w()
        seconds = list(queue.run(cap_w, 120))
        above = [power_w > cap_w for power_w, _ in seconds[2:]]
        assert sum(above) <= 0.06 * len(above)
        assert "111" not in "".join("1" if each else "0" for each in above)
        changes = sum(before != after for (_, before), (_, after) in pairwise(seconds[20:]))
        assert changes <= 15

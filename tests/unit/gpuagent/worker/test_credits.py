"""A worker's credits among its streams: never too many, never none, in proportion to demand."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.gpuagent.worker.core.credits import PERIOD_S, Credits, Share, quotas
from services.kit.errors import InvalidArgument
from tests.support.examples import examples

DEMANDS = st.lists(st.floats(0.0, 1e4), min_size=1, max_size=8)


@given(st.integers(1, 128), DEMANDS)
def test_quotas_are_all_the_credits_and_at_least_one_each(total: int, demands: list[float]) -> None:
    parts = quotas(total, demands)

    assert all(part >= 1.0 for part in parts)
    assert math.fsum(parts) == pytest.approx(max(total, len(demands)))


@given(st.integers(1, 128), DEMANDS)
def test_who_wants_more_never_gets_less(total: int, demands: list[float]) -> None:
    parts = dict(zip(demands, quotas(total, demands), strict=True))
    ordered = [parts[demand] for demand in sorted(parts)]

    assert all(a <= b + 1e-9 for a, b in pairwise(ordered))


@given(st.integers(1, 128), st.lists(st.floats(1.0, 100.0), min_size=1, max_size=8))
def test_under_overload_quotas_are_in_proportion_to_demand(
    total: int, demands: list[float]
) -> None:
    """Where the proportional part is at least the one credit that each has anyway."""
    wanted = math.fsum(demands)
    fair = [total * demand / wanted for demand in demands]
    if wanted < total or min(fair) < 1.0:
        return
    assert quotas(total, demands) == pytest.approx(fair)


def test_what_no_stream_wants_is_divided_equally() -> None:
    assert quotas(8, [0.0, 4.0]) == (2.0, 6.0)
    assert quotas(8, [0.0, 0.0]) == (4.0, 4.0)


def test_credits_below_one_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="total must be >= 1"):
        Credits(0)


class Streams(RuleBasedStateMachine):
    """Streams come, go, send and are answered in any order, at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.credits = Credits(8)
        self.shares: list[Share] = []

    @rule()
    def open(self) -> None:
        self.shares.append(self.credits.open(self.now_s))

    @precondition(lambda self: self.shares)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        share = data.draw(st.sampled_from(self.shares))
        self.shares.remove(share)
        self.credits.close(share, self.now_s)

    @precondition(lambda self: self.shares)
    @rule(data=st.data(), waited_s=st.floats(0.0, 30.0))
    def take(self, data: st.DataObject, waited_s: float) -> None:
        share = data.draw(st.sampled_from(self.shares))
        if share.in_flight < share.credits:
            self.credits.take(share, waited_s, self.now_s)

    @precondition(lambda self: self.shares)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        share = data.draw(st.sampled_from(self.shares))
        if share.in_flight:
            self.credits.give_back(share, self.now_s)

    @rule(passed_s=st.floats(0.0, 10.0))
    def divide(self, passed_s: float) -> None:
        self.now_s += passed_s
        before = {id(share): share.credits for share in self.shares}
        changed = self.credits.divide(self.now_s)
        gained = sum(max(share.credits - before[id(share)], 0) for share in self.shares)
        assert gained <= 2, "a quarter of the credits at most"
        assert changed == any(share.credits != before[id(share)] for share in self.shares)

    @invariant()
    def all_credits_are_given_and_each_stream_has_one(self) -> None:
        if self.shares:
            assert sum(share.credits for share in self.shares) == max(8, len(self.shares))
            assert min(share.credits for share in self.shares) >= 1


TestStreams = Streams.TestCase


def _saturated(credits_: Credits, waiting: dict[int, float], shares: list[Share]) -> None:
    """Run ten seconds in which each stream uses all it may and `waiting` more wait."""
    now_s = credits_._counted_s
    for _ in range(200):
        now_s += PERIOD_S / 2
        for index, share in enumerate(shares):
            while share.in_flight > share.credits:
                credits_.give_back(share, now_s)
            # In half a period `rate` requests come and go; by Little's law each waited so long.
            for _ in range(share.in_flight and 4):
                credits_.give_back(share, now_s)
                credits_.take(share, waiting.get(index, 0.0) * PERIOD_S / 2 / 4, now_s)
            while waiting.get(index, 0.0) and share.in_flight < share.credits:
                credits_.take(share, 0.0, now_s)
        credits_.divide(now_s)


@examples(0.4)
@given(st.integers(2, 64), st.lists(st.floats(10.0, 1000.0), min_size=2, max_size=5))
def test_busy_streams_converge_to_their_queues_proportions(total: int, queues: list[float]) -> None:
    """From any beginning: the rest is rounding, and the credits that streams hold themselves."""
    credits_ = Credits(total)
    shares = [credits_.open(0.0) for _ in queues]
    _saturated(credits_, dict(enumerate(queues)), shares)

    wanted = quotas(total, [share.demand for share in shares])
    assert all(abs(s.credits - w) <= 1.5 for s, w in zip(shares, wanted, strict=True))
    for share, queue in zip(shares, queues, strict=True):
        assert share.demand == pytest.approx(queue + share.in_flight, rel=0.2, abs=1.0)


def test_a_busy_stream_takes_what_an_idle_one_does_not_use_and_gives_it_back() -> None:
    credits_ = Credits(16)
    idle, busy = credits_.open(0.0), credits_.open(0.0)
    _saturated(credits_, {1: 100.0}, [idle, busy])
    assert (idle.credits, busy.credits) == (1, 15)

    _saturated(credits_, {0: 100.0, 1: 100.0}, [idle, busy])
    assert abs(idle.credits - busy.credits) <= 2

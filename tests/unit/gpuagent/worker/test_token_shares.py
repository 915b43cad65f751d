"""Shares of a device's cost among texts that it generates at the same time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.worker.core.tokens import Shares

Event = tuple[str, int, float]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "count", "spend", "leave"]),
        st.integers(0, 3),
        st.floats(0, 1e6, allow_nan=False),
    ),
    max_size=60,
)


@given(EVENTS)
def test_in_any_order_of_requests_what_is_paid_is_what_was_spent(events: list[Event]) -> None:
    """Conservation: shares sum to the cost, and none is negative."""
    shares, here, spent_j, paid_j = Shares(), set[int](), 0.0, 0.0
    for what, who, amount in events:
        if what == "join" and who not in here:
            here.add(who)
            shares.join(who)
        elif what == "count":
            shares.count(who, int(amount))
        elif what == "spend" and here:
            shares.spend(amount, 3 * amount)
            spent_j += amount
        elif what == "leave" and who in here:
            here.remove(who)
            part, idle_j = shares.leave(who)
            paid_j += part
            assert idle_j == pytest.approx(3 * part)
            assert part >= 0.0
    paid_j += sum(shares.leave(who).active_j for who in here)

    assert paid_j == pytest.approx(spent_j)


def test_energy_follows_tokens_of_the_same_stretch_only() -> None:
    shares = Shares()
    shares.join("a")
    shares.count("a", 100)
    shares.spend(5.0)
    shares.join("b")
    shares.count("a", 1)
    shares.count("b", 3)
    shares.spend(8.0)

    assert (shares.leave("a").active_j, shares.leave("b").active_j) == (7.0, 6.0)


def test_a_stretch_without_tokens_is_shared_equally() -> None:
    shares = Shares()
    shares.join("a")
    shares.join("b")
    shares.spend(3.0)

    assert shares.leave("a") == shares.leave("b") == (1.5, 0.0)


def test_the_idle_time_before_requests_is_the_firsts() -> None:
    """The request that ends the wait pays for it; while both are there, both pay."""
    shares = Shares()
    shares.join("a", 10.0)
    shares.join("b")
    shares.spend(0.0, 4.0)

    assert (shares.leave("a").idle_j, shares.leave("b").idle_j) == (12.0, 2.0)

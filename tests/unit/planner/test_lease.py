"""Leadership among several planners: leases and terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.lease import ACTS_S, EXPIRES_S, Lease, Tenure, Vigil

DELAYS_S = st.floats(0.0, 3.0)


def test_a_holder_that_renews_is_never_taken_for_gone() -> None:
    """Whatever the clocks say, renewals in time keep the lease."""
    vigil, lease, now_s = Vigil(), Lease("a", 1), 0.0
    for _ in range(20):
        assert not vigil.expired(lease, now_s)
        lease, now_s = lease.renewed(), now_s + EXPIRES_S - 0.1


def test_a_lease_that_does_not_change_expires_by_the_observers_clock() -> None:
    vigil, lease = Vigil(), Lease("a", 1, beat=7)
    vigil.expired(lease, 1000.0)

    assert not vigil.expired(lease, 1000.0 + EXPIRES_S - 0.01)
    assert vigil.expired(lease, 1000.0 + EXPIRES_S)


@given(st.lists(st.tuples(DELAYS_S, DELAYS_S, DELAYS_S), min_size=1, max_size=20))
def test_the_holder_stops_acting_before_anybody_else_may_lead(
    renewals: list[tuple[float, float, float]],
) -> None:
    """Whatever the delays of the pauses, of the writes, and of the looks at what was written."""
    tenure, vigil, lease, now_s = Tenure(0.0), Vigil(), Lease("a", 1), 0.0
    for pause_s, write_s, look_s in renewals:
        requested_s = now_s = now_s + pause_s
        now_s += write_s
        lease = lease.renewed()
        tenure.renewed(requested_s)
        seen_s = now_s + look_s
        if vigil.expired(lease, seen_s):
            assert not tenure.lasts_s(seen_s)
        now_s = seen_s
    expires_s = now_s + EXPIRES_S

    assert not tenure.lasts_s(expires_s)
    assert tenure.lasts_s(requested_s) == pytest.approx(ACTS_S)


def test_the_next_holder_leads_in_the_next_term() -> None:
    """Terms only grow, so that an old leader is recognised."""
    first = Lease().taken("a").renewed().renewed()
    second = first.taken("b")

    assert (first.term, second.term) == (1, 2)
    assert first.same(first.renewed())
    assert not second.same(first)


def test_a_term_is_raised_but_never_lowered() -> None:
    """The agents of a restored database know terms that it has forgotten."""
    lease = Lease("a", 5)

    assert (lease.renewed(at_least=9).term, lease.renewed(at_least=2).term) == (9, 5)

"""Quotas of clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Quota
from services.kit.errors import ResourceExhausted
from services.router.core.quotas import Quotas


def test_requests_in_flight_are_bounded_for_each_client_alone() -> None:
    quotas = Quotas({"*": Quota(in_flight=2)})
    for client in ("a", "a", "b"):
        quotas.enter(client, 0)
    with pytest.raises(ResourceExhausted, match="a has 2 requests in flight"):
        quotas.enter("a", 0)
    quotas.enter("b", 0)
    quotas.leave("a")
    quotas.enter("a", 0)


def refused_for_s(quotas: Quotas, now_s: float) -> float:
    """Return for how long a request is refused, s; 0: it is let in."""
    try:
        quotas.enter("a", now_s)
    except ResourceExhausted as error:
        return error.retry_after_s or float("inf")
    return 0.0


@given(
    gaps_s=st.lists(st.floats(0, 3), min_size=1, max_size=60),
    rate_rps=st.floats(0.1, 20),
    burst=st.integers(1, 8),
)
def test_no_more_pass_than_rate_and_burst_allow(
    gaps_s: list[float], rate_rps: float, burst: int
) -> None:
    """The token bucket's law: in any stretch at most burst + rate x time; waiting is enough."""
    quotas = Quotas({"*": Quota(rate_rps=rate_rps, burst=burst)})
    now_s = 0.0
    for passed, gap_s in enumerate(gaps_s, 1):
        now_s += gap_s
        wait_s = refused_for_s(quotas, now_s)
        if wait_s:
            now_s += wait_s + 1e-6
            assert not refused_for_s(quotas, now_s)
        assert passed <= burst + rate_rps * now_s + 1e-3


def test_the_longest_pattern_counts_and_others_are_free() -> None:
    quotas = Quotas({"app/*": Quota(in_flight=1), "app/batch": Quota(in_flight=2)})
    for client in ("app/batch", "app/batch", "app/web", "other", "other", "other"):
        quotas.enter(client, 0)
    for client in ("app/batch", "app/web"):
        with pytest.raises(ResourceExhausted):
            quotas.enter(client, 0)


def test_identities_that_clients_choose_do_not_grow_the_memory() -> None:
    """Idle clients are forgotten; those with requests in flight are not."""
    quotas = Quotas({"*": Quota(in_flight=1, rate_rps=100, burst=1)})
    quotas.enter("busy", 0)
    for number in range(10_000):
        quotas.enter(str(number), number)
        quotas.leave(str(number))
    assert len(quotas._uses) <= 4096
    with pytest.raises(ResourceExhausted):
        quotas.enter("busy", 10_000)

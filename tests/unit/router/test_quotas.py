"""Quotas of clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Quota
from services.kit.errors import ResourceExhausted
from services.router.core.quotas import Quotas


def test_requests_in_flight_are_bounded_for_each_client_alone() -> None:
    """A client at its quota waits for its own requests to end, and for no time."""
    quotas = Quotas({"*": Quota(in_flight=2)})
    for client in ("a", "a", "b"):
        quotas.enter(client, 0)
    with pytest.raises(ResourceExhausted, match="a has 2 requests in flight") as refused:
        quotas.enter("a", 0)
    assert (refused.value.reason, refused.value.retry_after_s) == ("QUOTA", None)
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


def test_a_bucket_fills_at_its_rate_up_to_its_burst() -> None:
    """The refusal says when the next token comes, and time of long ago is not saved up."""
    quotas = Quotas({"*": Quota(rate_rps=4, burst=2)})
    for _ in range(2):
        quotas.enter("a", 100.0)
    with pytest.raises(ResourceExhausted, match="4 requests per second") as refused:
        quotas.enter("a", 100.1)
    assert refused.value.reason == "QUOTA"
    assert refused.value.retry_after_s == pytest.approx(0.15)

    quotas.enter("a", 100.25)
    assert refused_for_s(quotas, 100.25) == pytest.approx(0.25)
    assert [refused_for_s(quotas, 200.0) for _ in range(3)] == [0.0, 0.0, pytest.approx(0.25)]


def test_a_request_that_is_refused_is_not_in_flight_and_takes_no_token() -> None:
    """A refused client may come again as if it had not come."""
    quotas = Quotas({"*": Quota(in_flight=1, rate_rps=1, burst=3)})
    quotas.enter("a", 0.0)
    for _ in range(5):
        with pytest.raises(ResourceExhausted):
            quotas.enter("a", 0.0)
    for _ in range(2):
        quotas.leave("a")
        quotas.enter("a", 0.0)
    quotas.leave("a")
    with pytest.raises(ResourceExhausted, match="per second"):
        quotas.enter("a", 0.0)
    quotas.enter("a", 1.0)
    with pytest.raises(ResourceExhausted, match="in flight"):
        quotas.enter("a", 9.0)


def test_a_client_without_quota_may_leave() -> None:
    """Nothing is counted of it."""
    quotas = Quotas({"a": Quota(in_flight=1)})
    quotas.enter("b", 0)
    quotas.leave("b")


def test_a_pattern_ends_in_a_star_or_is_exact() -> None:
    """A name is no prefix, a star elsewhere is a letter, and of two prefixes the longer counts."""
    quotas = Quotas(
        {
            "ap": Quota(in_flight=5),
            "a*c": Quota(in_flight=5),
            "a*": Quota(in_flight=1),
            "app*": Quota(in_flight=2),
        }
    )
    for client, allowed in (("apc", 1), ("abc", 1), ("app", 2), ("apple", 2)):
        for _ in range(allowed):
            quotas.enter(client, 0)
        with pytest.raises(ResourceExhausted, match=f"{client} has {allowed} "):
            quotas.enter(client, 0)


def test_the_longest_pattern_counts_and_others_are_free() -> None:
    """An exact name counts before a prefix; a client that no pattern names has no quota."""
    quotas = Quotas({"app/*": Quota(in_flight=1), "app/batch": Quota(in_flight=2)})
    for client in ("app/batch", "app/batch", "app/web", "other", "other", "other"):
        quotas.enter(client, 0)
    for client in ("app/batch", "app/web"):
        with pytest.raises(ResourceExhausted):
            quotas.enter(client, 0)


def test_requests_that_can_wait_have_the_quota_once_more() -> None:
    """They take none of the others', whether their call was counted with these or not at all."""
    quotas = Quotas({"app": Quota(in_flight=1, rate_rps=1, burst=1)})
    with quotas.charged("app", 0), quotas.deferred("app", 0):
        with quotas.charged("app", 0):
            pass
        with (
            pytest.raises(ResourceExhausted, match="app has 1 waiting requests in flight") as full,
            quotas.charged_apart("app", 10),
        ):
            pass
        assert full.value.retry_after_s
    with quotas.charged_apart("app", 20), quotas.charged("app", 20):
        pass
    quotas.enter("app", 40)
    with pytest.raises(ResourceExhausted):
        quotas.enter("app", 40)


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

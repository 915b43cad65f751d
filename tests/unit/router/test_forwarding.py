"""Rates of requests that leave: never above what was granted, and nothing after its expiry."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.planner.v1.records import Forward
from services.router.core.forwarding import Forwarding


@given(
    st.floats(0, 500),
    st.lists(st.floats(0, 0.5), min_size=1, max_size=200),
    st.floats(1, 40),
)
def test_no_more_leaves_than_was_granted(
    rate_rps: float, gaps_s: list[float], until_s: float
) -> None:
    """In any time, the rate and half a second's requests; none after the expiry."""
    forwarding, now_s, left = Forwarding(), 0.0, 0
    forwarding.use([Forward("m", "far", rate_rps, timedelta(seconds=until_s))], 0.0)
    for gap_s in gaps_s:
        now_s += gap_s
        taken = forwarding.choose("m", now_s) == "far"
        assert not (taken and now_s >= until_s + 1e-6)  # a timedelta has microseconds
        left += taken
        assert left <= rate_rps * (now_s + 0.5) + 1
        valid = timedelta(seconds=max(until_s - now_s, 0.0))
        forwarding.use([Forward("m", "far", rate_rps, valid)], now_s)


def test_the_cleanest_comes_first_and_a_failed_region_rests() -> None:
    """The second region gets what the first does not take; one that failed gets nothing for 5 s."""
    forwarding = Forwarding()
    valid = timedelta(seconds=100)
    rates = [Forward("m", "clean", 2.0, valid), Forward("m", "next", 10.0, valid)]
    forwarding.use(rates, 0.0)
    assert [forwarding.choose("m", 1.0) for _ in range(3)] == ["clean", "next", "next"]
    forwarding.suspend("next", 1.0)
    assert forwarding.choose("m", 1.1) == ""
    assert forwarding.choose("m", 5.0) == "clean"
    assert forwarding.choose("other", 6.1) == ""


def test_a_planner_that_falls_silent_lets_nothing_leave_for_longer_than_thirty_seconds() -> None:
    """However long it had said that the rate is valid."""
    forwarding = Forwarding()
    forwarding.use([Forward("m", "far", 10.0, timedelta(days=1))], 0.0)
    assert forwarding.choose("m", 29.9) == "far"
    assert forwarding.choose("m", 30.0) == ""

"""Rates of requests that leave: never above what was granted, and nothing after its expiry."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.planner.v1.records import Forward
from services.router.core.forwarding import Forwarding
from services.router.core.prefix_cache import BLOCK_BYTES, chain

FAR = frozenset({"far", "clean", "next"})
VALID = timedelta(seconds=100)


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
        taken = forwarding.choose("m", now_s, FAR) == "far"
        assert not (taken and now_s >= until_s + 1e-6)  # a timedelta has microseconds
        left += taken
        assert left <= rate_rps * (now_s + 0.5) + 1
        valid = timedelta(seconds=max(until_s - now_s, 0.0))
        forwarding.use([Forward("m", "far", rate_rps, valid)], now_s)


def test_the_cleanest_comes_first_and_a_failed_region_rests() -> None:
    """The second region gets what the first does not take; one that failed gets nothing for 5 s."""
    forwarding = Forwarding()
    rates = [Forward("m", "clean", 2.0, VALID), Forward("m", "next", 10.0, VALID)]
    forwarding.use(rates, 0.0)
    assert [forwarding.choose("m", 1.0, FAR) for _ in range(3)] == ["clean", "next", "next"]
    forwarding.suspend("next", 1.0)
    assert forwarding.choose("m", 1.1, FAR) == ""
    assert forwarding.choose("m", 5.0, FAR) == "clean"
    assert forwarding.choose("other", 6.1, FAR) == ""


def test_a_planner_that_falls_silent_lets_nothing_leave_for_longer_than_thirty_seconds() -> None:
    """However long it had said that the rate is valid."""
    forwarding = Forwarding()
    forwarding.use([Forward("m", "far", 10.0, timedelta(days=1))], 0.0)
    assert forwarding.choose("m", 29.9, FAR) == "far"
    assert forwarding.choose("m", 30.0, FAR) == ""


def prompt(turns: int, who: str = "a") -> tuple[int, ...]:
    """Return the blocks of a conversation's prompt: a system prompt, and turns of its own."""
    return chain(b"s" * 2 * BLOCK_BYTES + who.encode() * turns * 4 * BLOCK_BYTES)


def test_a_conversation_stays_where_its_cache_is() -> None:
    """At home although a region has room, in the second cleanest although the first has."""
    forwarding = Forwarding()
    rates = [Forward("m", "clean", 100.0, VALID), Forward("m", "next", 100.0, VALID)]
    forwarding.use(rates, 0.0)
    for place in ("", "next"):
        forwarding.conversations.keep("m", prompt(3), place)
        assert forwarding.choose("m", 10.0, FAR, prompt(4)) == place
    forwarding.conversations.keep("m", prompt(3), "next")
    assert forwarding.choose("m", 10.0, FAR - {"next"}, prompt(4)) == "clean"


def test_prompts_that_share_a_beginning_are_no_conversation() -> None:
    """A system prompt seen at home ties no prompt to it; nor does one that is mostly new text."""
    forwarding = Forwarding()
    forwarding.use([Forward("m", "clean", 100.0, VALID)], 0.0)
    forwarding.conversations.keep("m", prompt(2), "")
    assert forwarding.choose("m", 10.0, FAR, prompt(2, "b")) == "clean"
    assert forwarding.choose("m", 10.0, FAR, prompt(9)) == "clean"

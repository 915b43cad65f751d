"""Backoff: delays grow to a bound, are never hasty, and start afresh after success."""

import random

from hypothesis import given
from hypothesis import strategies as st

from services.kit.backoff import Backoff


@given(initial_s=st.floats(0.001, 1), factor=st.floats(1, 1000), seed=st.integers())
def test_delays_stay_between_half_a_bound_that_doubles_and_that_bound(
    initial_s: float, factor: float, seed: int
) -> None:
    maximum_s = initial_s * factor
    backoff = Backoff(initial_s, maximum_s, random.Random(seed))
    for attempt in range(15):
        bound_s = min(maximum_s, initial_s * 2**attempt)
        assert bound_s / 2 <= backoff.next_s() <= bound_s


@given(failures=st.integers(0, 20), seed=st.integers())
def test_after_success_the_first_delay_is_short_again(failures: int, seed: int) -> None:
    backoff = Backoff(0.05, 2.0, random.Random(seed))
    for _ in range(failures):
        backoff.next_s()
    backoff.reset()

    assert backoff.next_s() <= 0.05


def test_peers_do_not_come_back_together() -> None:
    """Full jitter: two that failed at the same time try again at different ones."""
    delays = {Backoff(rng=random.Random(seed)).next_s() for seed in range(50)}

    assert len(delays) == 50

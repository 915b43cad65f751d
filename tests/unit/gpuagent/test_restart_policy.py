"""The number of failures after which a segment is not restarted."""

from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.core.restart_policy import FailureHistory
from services.kit.config import Workers

LIMITS = Workers(max_failures=3, failure_window_s=100.0)


@given(
    gaps_s=st.lists(st.floats(0, 200), min_size=1, max_size=30),
    most=st.integers(1, 5),
    window_s=st.floats(1, 300),
)
def test_a_worker_is_given_up_exactly_when_a_window_holds_too_many_failures(
    gaps_s: list[float], most: int, window_s: float
) -> None:
    failures = FailureHistory(Workers(max_failures=most, failure_window_s=window_s))
    times_s: list[float] = []
    for gap_s in gaps_s:
        times_s.append((times_s[-1] if times_s else 0.0) + gap_s)
        failures.note(times_s[-1], "it broke")
        recent = [at_s for at_s in times_s if at_s > times_s[-1] - window_s]
        assert failures.too_many == (len(recent) >= most)


def test_one_that_was_given_up_stays_so_until_it_is_forgiven() -> None:
    failures = FailureHistory(LIMITS)
    for at_s in (0.0, 1.0, 2.0):
        assert not failures.too_many
        failures.note(at_s, f"failure at {at_s}")

    assert failures.too_many
    assert (failures.last, failures.count) == ("failure at 2.0", 3)
    failures.reset()
    assert not failures.too_many
    assert (failures.last, failures.count) == ("", 0)

"""MPS limits: the part of a slice that each process may take."""

from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import MpsLimit, Placement, SegmentSpec
from services.gpuagent.core.mps_limits import ceiling_of, limits_of, memory_value
from services.kit.segment import MOST_PROCESSES

LIMITS = st.builds(MpsLimit, st.integers(1, 100), st.integers(0, 80 * 2**30))


def _spec(processes: int, limits: tuple[MpsLimit, ...] = ()) -> SegmentSpec:
    return SegmentSpec("s", "m", "v", 1, processes, "GPU-1", Placement("3g.20gb", 0), limits)


@given(st.integers(1, MOST_PROCESSES))
def test_equal_shares_are_at_least_one_percent_and_fit(processes: int) -> None:
    limits = limits_of(_spec(processes))

    assert len(limits) == processes
    assert len(set(limits)) == 1
    assert sum(limit.thread_percentage for limit in limits) <= 100


@given(st.lists(LIMITS, min_size=1, max_size=8))
def test_a_ceiling_holds_every_limit_and_no_more(limits: list[MpsLimit]) -> None:
    """A bound on memory for all would be wrong where one process has none."""
    ceiling = ceiling_of(limits)

    assert ceiling.thread_percentage == max(limit.thread_percentage for limit in limits)
    if all(limit.memory_bytes for limit in limits):
        assert ceiling.memory_bytes == max(limit.memory_bytes for limit in limits)
    else:
        assert ceiling.memory_bytes == 0


@given(LIMITS)
def test_a_bound_on_memory_is_never_widened_but_by_less_than_the_least_one(limit: MpsLimit) -> None:
    value = memory_value(limit)

    if limit.memory_bytes:
        mib = int(value.removesuffix("M"))
        assert mib >= 1
        assert mib == 1 or mib * 2**20 <= limit.memory_bytes
    else:
        assert value == ""


def test_explicit_limits_are_taken_as_they_are() -> None:
    limits = (MpsLimit(80, 2**30), MpsLimit(80))

    assert limits_of(_spec(2, limits)) == limits

"""The sketch against sorted lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.sketch import Buckets, Sketch

BUCKETS = Buckets.spanning(1e-6, 1e4, 1.01 / 0.99)
values = st.floats(1e-6, 1e4)


@given(values)
def test_the_value_of_a_bucket_is_within_the_accuracy_of_its_growth(value: float) -> None:
    assert BUCKETS.value(BUCKETS.index(value)) == pytest.approx(value, rel=0.01 + 1e-9)


@pytest.mark.parametrize(("value", "index"), [(0.0, 0), (-1.0, 0), (1e30, BUCKETS.count - 1)])
def test_what_lies_beyond_counts_in_the_outermost_bucket(value: float, index: int) -> None:
    assert BUCKETS.index(value) == index


@given(st.lists(values), st.lists(values, min_size=1), st.floats(0, 100))
def test_a_difference_of_two_sketches_has_the_quantiles_of_the_time_between(
    before: list[float], after: list[float], percentile: float
) -> None:
    sketch = Sketch(BUCKETS)
    for value in before:
        sketch.add(value)
    earlier = sketch.copy()
    for value in after:
        sketch.add(value)

    found = (sketch - earlier).quantiles([percentile])

    exact = sorted(after)[int(percentile / 100 * (len(after) - 1))]
    assert found[percentile] == pytest.approx(exact, rel=0.01 + 1e-9)


def test_nothing_counted_has_no_quantiles() -> None:
    assert Sketch(BUCKETS).quantiles([50]) == {}

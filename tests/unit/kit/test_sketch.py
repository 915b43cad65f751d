"""The sketch against sorted lists."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.kit.sketch import Buckets, Sketch

values = st.floats(1e-6, 1e4)


def made() -> Buckets:
    """Buckets of a hundredth, from a microsecond to three hours."""
    return Buckets.spanning(1e-6, 1e4, 1.01 / 0.99)


def test_buckets_span_a_range_and_no_more_than_one_bucket_beyond() -> None:
    """Each is wider than the one below by the growth; the last holds the highest value."""
    buckets = Buckets.spanning(1.0, 1000.0, 2.0)

    assert (buckets.lowest, buckets.growth, buckets.count) == (1.0, 2.0, 10)
    assert [buckets.index(value) for value in (1.0, 1.5, 2.5, 5.0, 700.0, 1000.0)] == [
        *(0, 0, 1, 2),
        *(9, 9),
    ]
    assert buckets.value(3) / buckets.value(2) == pytest.approx(2.0)


@given(values)
@example(1e-6)
@example(0.985e4)
@example(1e4)
def test_the_value_of_a_bucket_is_within_the_accuracy_of_its_growth(value: float) -> None:
    """A value and the one that stands for it differ by a hundredth at most."""
    buckets = made()
    assert buckets.value(buckets.index(value)) == pytest.approx(value, rel=0.01 + 1e-9)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-9])
def test_small_values_count_in_the_first_bucket(value: float) -> None:
    """Also those that have no logarithm."""
    assert made().index(value) == 0


@pytest.mark.parametrize("value", [1.01e4, 1.02e4, 1.03e4, 1.05e4, 1e30])
def test_large_values_count_in_the_last_bucket(value: float) -> None:
    """No value names a bucket that does not exist."""
    buckets = made()
    assert buckets.index(value) == buckets.count - 1


@given(values, st.floats(1e-2, 1e2))
def test_between_is_how_far_apart_the_buckets_of_two_values_are(
    value: float, factor: float
) -> None:
    """To within the rounding of both."""
    buckets = Buckets.spanning(1e-9, 1e9, 1.01 / 0.99)
    apart = buckets.index(value * factor) - buckets.index(value)

    assert buckets.between(factor) == pytest.approx(apart, abs=1.001)


@given(st.lists(values), st.lists(values, min_size=1), st.floats(0, 100))
@example([], [1.0, 2.0, 3.0], 100.0)
@example([5.0], [1.0, 2.0, 3.0], 0.0)
@example([], [1e4, 1e4], 50.0)
def test_a_difference_of_two_sketches_has_the_quantiles_of_the_time_between(
    before: list[float], after: list[float], percentile: float
) -> None:
    """Values counted before the copy was taken play no part."""
    sketch = Sketch(made())
    for value in before:
        sketch.add(value)
    earlier = sketch.copy()
    for value in after:
        sketch.add(value)

    found = (sketch - earlier).quantiles([percentile])

    exact = sorted(after)[int(percentile / 100 * (len(after) - 1))]
    assert found[percentile] == pytest.approx(exact, rel=0.01 + 1e-9)


def test_sketches_of_different_buckets_have_no_difference() -> None:
    """Counts of other buckets would be taken for these."""
    with pytest.raises(ValueError, match="zip"):
        Sketch(Buckets(1.0, 2.0, 4)) - Sketch(Buckets(1.0, 2.0, 3))


def test_nothing_counted_has_no_quantiles() -> None:
    """An empty sketch claims no value."""
    assert Sketch(made()).quantiles([50]) == {}

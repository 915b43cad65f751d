"""Experts weighted by their own errors: never much worse than the best of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.forecast.expert_aggregation import ExpertAggregation, Vector
from tests.support.examples import examples


def lost(opinions: Vector, outcomes: Vector) -> tuple[float, Vector]:
    """Return the mean absolute error of the mixture, and that of each expert."""
    mixture = ExpertAggregation(opinions.shape[1])
    said = []
    for row, outcome in zip(opinions, outcomes, strict=True):
        said.append(mixture.combine(row))
        mixture.learn(row, float(outcome))
    errors = np.abs(opinions - outcomes[:, None]).mean(axis=0)
    return float(np.abs(np.array(said) - outcomes).mean()), errors


@examples(0.2)
@given(st.integers(0, 1000), st.integers(2, 8), st.floats(1e-3, 1e6))
def test_the_mixture_is_hardly_worse_than_its_best_expert(
    seed: int, experts: int, scale: float
) -> None:
    """One expert knows more than the others, which change their bias half-way."""
    draw = np.random.default_rng(seed)
    outcomes = draw.normal(size=1000)
    noise = draw.uniform(0.3, 3.0, size=experts)
    opinions = outcomes[:, None] + noise * draw.normal(size=(1000, experts))
    opinions[500:, 1:] += draw.normal(size=experts - 1)

    mixed, errors = lost(scale * opinions, scale * outcomes)

    assert mixed <= 1.05 * errors.min()


def test_two_experts_that_err_to_opposite_sides_are_better_together() -> None:
    outcomes = np.random.default_rng(1).normal(size=2000)
    opinions = outcomes[:, None] + np.array([1.0, -1.0])

    mixed, errors = lost(opinions, outcomes)

    assert errors == pytest.approx([1.0, 1.0])
    assert mixed < 0.1


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), max_size=30))
def test_a_mixture_lies_between_its_experts_whatever_comes(
    history: list[tuple[float, float]],
) -> None:
    mixture = ExpertAggregation(2)
    for opinion, outcome in history:
        opinions = np.array([opinion, -opinion / 3])
        tolerance = 1e-9 * abs(opinion)
        assert opinions.min() - tolerance <= mixture.combine(opinions) <= opinions.max() + tolerance
        mixture.learn(opinions, outcome)
        assert mixture.weights.sum() == pytest.approx(1.0)

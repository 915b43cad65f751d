"""Messages between router and predictor: classes from ranks, lengths in batches."""

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.predictor.v1 import predictor_pb2 as pb
from services.router.adapters.predictor_client import _BATCH_BYTES, batch, decile_of


@pytest.mark.parametrize(("rank", "expected"), [(0.0, 0), (0.19, 1), (0.21, 2), (1.0, 9)])
def test_a_rank_falls_into_its_decile(rank: float, expected: int) -> None:
    assert decile_of(pb.PredictResponse(rank=rank)) == expected


@pytest.mark.parametrize("rank", [None, math.nan, -0.1, 1.1])
def test_an_invalid_rank_is_no_class(rank: float | None) -> None:
    assert decile_of(pb.PredictResponse(rank=rank)) is None


@given(st.lists(st.integers(0, 2 * _BATCH_BYTES), max_size=12))
def test_batches_are_bounded_in_bytes_and_nothing_is_lost_or_changes_its_order(
    sizes: list[int],
) -> None:
    """Only a prompt that is larger alone goes above the bound."""
    prompts = [bytes(size) for size in sizes]
    waiting = deque(pb.Observation(model="m", prompt=each) for each in prompts)
    received: list[bytes] = []
    while waiting:
        taken = batch(waiting)
        assert len(taken) == 1 or sum(each.ByteSize() for each in taken) <= _BATCH_BYTES
        received += [each.prompt for each in taken]
    assert received == prompts

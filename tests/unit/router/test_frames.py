"""Which requests leave together."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from services.router.domain import Request
from services.router.frames import take


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_frames_keep_order_lose_nothing_and_stay_below_the_cap(sizes: list[int]) -> None:
    """Only a request that alone is larger than the cap makes a larger frame, and is alone in it."""
    outbox = deque(Request(n, "m", bytes(size), 0.0, 1.0) for n, size in enumerate(sizes))
    frames = []
    while outbox:
        frames.append(take(outbox, limit_bytes=100))

    assert [request.number for frame in frames for request in frame] == list(range(len(sizes)))
    for frame, following in zip(frames, [*frames[1:], []], strict=True):
        size = sum(len(request.body) for request in frame)
        assert size <= 100 or len(frame) == 1
        assert not following or size + len(following[0].body) > 100, "nobody is left behind"

"""Requests that leave together, and how protobuf reads them."""

from collections import deque

import pytest
from google.protobuf import unknown_fields
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from services.router.core.frames import frame, take
from services.router.core.model import Request
from tests.support.examples import examples

numbers = st.integers(1, 2**64 - 1)
requests = st.builds(
    Request,
    number=numbers,
    model=st.just("m"),
    body=st.binary(max_size=300),
    arrived_s=st.floats(0, 1e6),
    deadline_s=st.floats(0, 1e6),
    traceparent=st.sampled_from(["", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"]),
    tracestate=st.sampled_from(["", "vendor=" + "x" * 200]),
    client=st.none(),
    in_parts=st.booleans(),
)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_frames_keep_order_lose_nothing_and_stay_below_the_cap(sizes: list[int]) -> None:
    """Only a request that alone is larger than the cap makes a larger frame, and is alone in it."""
    outbox = deque(Request(n, "m", bytes(size), 0.0, 1.0) for n, size in enumerate(sizes))
    frames = []
    while outbox:
        frames.append(take(outbox, limit_bytes=100))

    assert [request.number for leaving in frames for request in leaving] == list(range(len(sizes)))
    for leaving, following in zip(frames, [*frames[1:], []], strict=True):
        size = sum(len(request.body) for request in leaving)
        assert size <= 100 or len(leaving) == 1
        assert not following or size + len(following[0].body) > 100, "no request is left behind"


@examples(0.4)
@given(st.lists(requests, max_size=5), st.lists(numbers, max_size=5), st.floats(0, 1e6))
def test_protobuf_reads_a_frame_as_what_was_put_into_it(
    work: list[Request], withdrawn: list[int], now_s: float
) -> None:
    """The bytes written by hand are the very message; bodies are untouched, times never 0 or less.

    A tracestate means nothing without its traceparent and stays behind.
    """
    parsed = pb.ExecuteRequest.FromString(b"".join(frame(work, withdrawn, now_s)[0]))

    assert list(parsed.cancelled_ids) == withdrawn
    assert len(parsed.work) == len(work)
    for request, read in zip(work, parsed.work, strict=True):
        assert (read.id, read.request) == (request.number, request.body)
        assert read.in_parts == request.in_parts
        assert read.traceparent == request.traceparent
        assert read.tracestate == (request.tracestate if request.traceparent else "")
        assert read.remaining_s == max(request.deadline_s - now_s, 0.001)
        waited_s = 0.0 if request.deferrable else max(now_s - request.arrived_s, 0.0)
        assert (read.waited_s, read.waiting) == (waited_s, request.deferrable)
    assert not unknown_fields.UnknownFieldSet(parsed)


@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384, 2_097_152])
def test_a_body_at_each_width_of_its_length_arrives_whole(size: int) -> None:
    body = b"\x5a" * size

    parsed = pb.ExecuteRequest.FromString(
        b"".join(frame([Request(7, "m", body, 0.0, 1.0)], [], 0.5)[0])
    )

    assert parsed.work[0].request == body

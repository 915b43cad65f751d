"""Frames of work are read alike in Python and by protobuf, and large ones without a copy."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from services.gpuagent.worker.work_messages import LARGE_BYTES, read_frame


def _frame(size: int) -> bytes:
    work = [
        pb.Work(id=7, request=bytes(size), remaining_s=0.5, waited_s=0.25, in_parts=True),
        pb.Work(id=8, request=b"small"),
        pb.Work(id=9),
    ]
    return pb.ExecuteRequest(work=work, cancelled_ids=[3, 4]).SerializeToString()


@pytest.mark.parametrize("size", [10, LARGE_BYTES])
def test_a_frame_is_read_whatever_its_size(size: int) -> None:
    """Ids, times, requests and withdrawals arrive, read by protobuf or by hand."""
    frame = read_frame(bytearray(_frame(size)))

    assert [(work.id, bytes(body)) for work, body in frame.work] == [
        (7, bytes(size)),
        (8, b"small"),
        (9, b""),
    ]
    first = frame.work[0][0]
    assert (first.remaining_s, first.waited_s, first.in_parts) == (0.5, 0.25, True)
    assert list(frame.cancelled_ids) == [3, 4]


def test_a_large_request_is_a_view_of_its_frame() -> None:
    """The view has the bytes that were received."""
    data = bytearray(_frame(LARGE_BYTES))
    (_, body), (_, small), _ = read_frame(data).work

    assert isinstance(body, memoryview)
    assert body.obj is data
    assert isinstance(small, bytes)  # it would hold the whole frame in memory


@given(at=st.integers(0, 60), bit=st.integers(0, 7), cut=st.integers(0, 60))
def test_damage_is_refused_or_read_as_protobuf_reads_it(at: int, bit: int, cut: int) -> None:
    """A large frame with a flipped bit and a missing end never means something else."""
    whole = bytearray(_frame(LARGE_BYTES))
    whole[at if at < 30 else -at] ^= 1 << bit
    data = bytes(whole[: len(whole) - cut])
    try:
        expected = pb.ExecuteRequest.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            read_frame(data)
        return
    try:
        frame = read_frame(data)
    except DecodeError:
        return
    assert [(work.id, bytes(body)) for work, body in frame.work] == [
        (work.id, work.request) for work in expected.work
    ]

"""Frames of work as routers send them; a large request is a view of the frame that brought it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from services.kit.protobuf_wire import taken_out

LARGE_BYTES: Final = 64 * 1024
"""From this size on a message is read in Python: protobuf's classes would copy it."""

Body: TypeAlias = bytes | memoryview
"""A serialized ModelInferRequest."""

_WORK, _REQUEST = (
    pb.ExecuteRequest.DESCRIPTOR.fields_by_name["work"].number,
    pb.Work.DESCRIPTOR.fields_by_name["request"].number,
)


_BODY = attrgetter("request")


class Frame(NamedTuple):
    """A message of a router.

    Attributes:
        work: What to do, without its request, and the request.
        cancelled_ids: Of work whose callers have gone.
    """

    work: Sequence[tuple[pb.Work, Body]]
    cancelled_ids: Sequence[int]


def read_frame(data: bytes | bytearray) -> Frame:
    """Read a serialized ExecuteRequest.

    Raises:
        DecodeError: It is none.
    """
    if len(data) < LARGE_BYTES:
        whole = pb.ExecuteRequest.FromString(data)  # type: ignore[arg-type]  # a bytearray, too
        bodies = map(_BODY, whole.work)
        return Frame(tuple(zip(whole.work, bodies, strict=True)), whole.cancelled_ids)
    try:
        rest, work = taken_out(memoryview(data), _WORK)
        return Frame(list(map(_read_work, work)), pb.ExecuteRequest.FromString(rest).cancelled_ids)
    except (ValueError, IndexError) as error:
        raise DecodeError("not a serialized ExecuteRequest") from error


def _read_work(data: memoryview) -> tuple[pb.Work, Body]:
    rest, requests = taken_out(data, _REQUEST)
    body = requests[-1] if requests else b""
    # A small request that waits must not hold all of its frame in memory.
    return pb.Work.FromString(rest), body if len(body) >= LARGE_BYTES else bytes(body)

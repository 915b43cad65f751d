"""Frames to workers: grouping of requests, and serialization.

Frames are written by hand, in pieces that leave as they are, for a body of a megabyte is then never
copied; protobuf's own classes would copy it three times.
Source: Protocol Buffers documentation, "Encoding"; field numbers of worker.proto.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from struct import Struct

from services.kit.protobuf_wire import size_varint, varint
from services.router.core.model import Request

FRAME_BYTES = 128 * 1024
"""Small requests share a frame up to this size; beyond it one frame costs more than two."""

_MIN_REMAINING_S = 0.001  # 0 would mean no deadline

_TIMES = Struct("<BdBd")
_REMAINING, _WAITED = 3 << 3 | 1, 5 << 3 | 1
_IN_PARTS = bytes((7 << 3, 1))
_WAITING = bytes((8 << 3, 1))


def take(outbox: deque[Request], limit_bytes: int = FRAME_BYTES) -> list[Request]:
    """Take the requests of the next frame out of `outbox`, oldest first.

    As many as fit into `limit_bytes` together; one that alone is larger leaves alone. None waits
    for others to come.
    """
    taken: list[Request] = []
    size = 0
    while outbox and (not taken or size + len(outbox[0].body) <= limit_bytes):
        request = outbox.popleft()
        size += len(request.body)
        taken.append(request)
    return taken


def frame(
    work: Iterable[Request], withdrawn: Sequence[int], now_s: float
) -> tuple[list[bytes], int]:
    """Return the pieces of a serialized cinquefoil.gpuagent.v1.ExecuteRequest, and its size, bytes.

    Args:
        work: Requests to execute.
        withdrawn: Numbers of earlier requests whose callers have gone.
        now_s: Monotonic time, s.
    """
    pieces: list[bytes] = []
    total = 0
    for request in work:
        body = request.body
        remaining_s = max(request.deadline_s - now_s, _MIN_REMAINING_S)
        # Waiting by choice is no demand for a worker's credits, and no latency.
        waited_s = 0.0 if request.deferrable else max(now_s - request.arrived_s, 0.0)
        after = _TIMES.pack(_REMAINING, remaining_s, _WAITED, waited_s)
        if request.in_parts:
            after += _IN_PARTS
        if request.deferrable:
            after += _WAITING
        if request.traceparent:
            after += _trace(request)
        before = b"\x08%b\x12%b" % (varint(request.number), size_varint(len(body)))
        size = len(before) + len(body) + len(after)
        opening = b"\x0a%b%b" % (size_varint(size), before)
        pieces += (opening, body, after)
        total += len(opening) + len(body) + len(after)
    if withdrawn:
        numbers = b"".join(map(varint, withdrawn))
        pieces.append(b"\x12%b%b" % (varint(len(numbers)), numbers))
        total += len(pieces[-1])
    return pieces, total


def _trace(request: Request) -> bytes:
    """Return the fields of a Work that carry its trace context."""
    trace, state = request.traceparent.encode(), request.tracestate.encode()
    traced = b"\x22%b%b" % (varint(len(trace)), trace)
    return b"%b\x32%b%b" % (traced, varint(len(state)), state) if state else traced

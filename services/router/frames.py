"""Which waiting requests leave together."""

from __future__ import annotations

from collections import deque

from services.router.domain import Request

FRAME_BYTES = 128 * 1024
"""Small requests share a frame up to this size; beyond it one frame costs more than two."""


def take(outbox: deque[Request], limit_bytes: int = FRAME_BYTES) -> list[Request]:
    """Take the requests of the next frame out of `outbox`, oldest first.

    As many as fit into `limit_bytes` together; one that alone is larger leaves alone. Nobody
    waits for company: what is there goes.
    """
    taken: list[Request] = []
    size = 0
    while outbox and (not taken or size + len(outbox[0].body) <= limit_bytes):
        request = outbox.popleft()
        size += len(request.body)
        taken.append(request)
    return taken

"""How long the caller of the call being served will still wait."""

from __future__ import annotations

import time
from contextvars import ContextVar

deadline_s: ContextVar[float | None] = ContextVar("deadline_s", default=None)
"""Monotonic time at which the caller gives up; set by the guard for each call."""


def time_left_s(most_s: float) -> float:
    """Return the timeout for an outgoing call, s.

    Args:
        most_s: What the call may take where no caller waits, or the caller has longer than that.

    Returns:
        At least 0: a call made with 0 ends at once with DEADLINE_EXCEEDED, as it should.
    """
    deadline = deadline_s.get()
    return most_s if deadline is None else min(most_s, max(deadline - time.monotonic(), 0.0))

"""Responses of a decoupled model, counted by their position in the request's answer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from services.router.core.accounting.durations import Durations
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Result

MAX_POSITIONS: Final = 256
"""Positions that are counted apart; those behind share the last one, so that memory is bounded."""


@dataclass(slots=True)
class PositionStats:
    """Responses at one position.

    Attributes:
        success: Responses.
        empty: Answers that ended here without a further response.
        fail: Answers that ended here in an error.
    """

    success: Durations = field(default_factory=Durations)
    empty: Durations = field(default_factory=Durations)
    fail: Durations = field(default_factory=Durations)


class ResponseStats:
    """The responses of one model. Attributes: positions (by index, from 0)."""

    def __init__(self) -> None:
        self.positions: defaultdict[int, PositionStats] = defaultdict(PositionStats)

    def count(self, pending: PendingRequest, result: Result) -> None:
        """Count the newest response, with the time since the one before or the assignment."""
        at = self.positions[min(pending.responses, MAX_POSITIONS) - 1]
        counted = at.fail if result.status else at.success if result.response else at.empty
        counted.add(pending.response_gap_s)

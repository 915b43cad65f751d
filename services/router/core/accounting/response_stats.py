"""Responses of a decoupled model, counted by their place in their request's answer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from services.router.core.model import Request
from services.router.core.worker_port import Result

MOST_PLACES: Final = 256
"""Places that are told apart; those behind share the last one, so that memory has a bound."""


@dataclass(slots=True)
class Count:
    """Events and the time that they took. Attributes: count, total_s."""

    count: int = 0
    total_s: float = 0.0

    def add(self, took_s: float) -> None:
        """Count one."""
        self.count += 1
        self.total_s += took_s


@dataclass(slots=True)
class PositionStats:
    """What became of the responses at one place.

    Attributes:
        success: Responses.
        empty: Answers that ended here without a further response.
        fail: Answers that ended here in an error.
    """

    success: Count = field(default_factory=Count)
    empty: Count = field(default_factory=Count)
    fail: Count = field(default_factory=Count)


class ResponseStats:
    """The counts of one model. Attributes: places (by index, from 0)."""

    def __init__(self) -> None:
        self.places: defaultdict[int, PositionStats] = defaultdict(PositionStats)

    def heard(self, request: Request, result: Result, now_s: float) -> None:
        """Count a result: its time is that since the one before, or since its worker had it."""
        place = self.places[min(request.said, MOST_PLACES - 1)]
        counted = place.fail if result.status else place.success if result.response else place.empty
        counted.add(now_s - (request.said_s if request.said else request.sent_s))
        request.said += 1
        request.said_s = now_s

"""Totals by minute: when energy was drawn. Pure."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

BIN_S: Final = 60.0
MAX_BINS: Final = 3 * 1440
"""Minutes that are kept: three days."""


@dataclass(slots=True)
class Bin:
    """A minute. Attributes: start_s (Unix time), amounts by quantity."""

    start_s: float
    amounts: dict[str, float]


class Timeline:
    """Steps of running totals, by minute; a total that went back counts from there."""

    def __init__(self) -> None:
        self.bins: deque[Bin] = deque(maxlen=MAX_BINS)
        self._last: dict[str, float] = {}

    def add(self, wall_s: float, totals: Mapping[str, float]) -> None:
        """Add what came since the last totals to the minute that it is.

        Args:
            wall_s: Unix time, s. Where the clock is set back, its newest minute continues.
            totals: By quantity.
        """
        start_s = math.floor(wall_s / BIN_S) * BIN_S
        if not self.bins or start_s > self.bins[-1].start_s:
            self.bins.append(Bin(start_s, {}))
        amounts = self.bins[-1].amounts
        for name, total in totals.items():
            more = total - self._last.get(name, 0.0)
            amounts[name] = amounts.get(name, 0.0) + max(more, 0.0)
        self._last = dict(totals)

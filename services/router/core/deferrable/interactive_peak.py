"""Slots that interactive requests need: how many they held at a time recently."""

import math
from dataclasses import dataclass, field
from typing import Final

MEMORY_S: Final = 120.0
"""Time after which a number of requests counts half as much, s."""

_BUSY_S: Final = 20.0
_COUNT_S: Final = 1.0
_RARE: Final = 0.01
_SIZES: Final = 256
_SPARE: Final = 32


@dataclass(slots=True)
class InteractivePeak:
    """Time that an instance spent with each number of interactive requests, forgotten slowly.

    Attributes:
        mean: Mean number over the last some ten seconds.
    """

    mean: float = 0.0
    _time_s: dict[int, float] = field(default_factory=dict)
    _held: int = 0
    _since_s: float = math.nan
    _scale: float = 1.0  # of the newest time: it grows, so that earlier ones count less
    _usual: int = 0
    _counted_s: float = -math.inf

    def hold(self, count: int, now_s: float) -> None:
        """Note that it holds so many from now on."""
        if now_s > self._since_s:  # not at first: NaN
            passed_s = now_s - self._since_s
            keep = math.exp(-passed_s / _BUSY_S)
            self.mean = keep * self.mean + (1 - keep) * self._held
            self._scale *= 2 ** min(passed_s / MEMORY_S, 900.0)
            at = min(self._held, _SIZES)
            self._time_s[at] = self._time_s.get(at, 0.0) + passed_s * self._scale
            if self._scale > 1e12:
                self._time_s = {k: v / self._scale for k, v in self._time_s.items()}
                self._scale = 1.0
            if now_s >= self._counted_s + _COUNT_S:
                self._usual, self._counted_s = self._count(), now_s
        self._held, self._since_s = count, now_s

    def reserve(self, interactive: int, credits_: int) -> int:
        """Return the slots to keep for them: what they exceed for 1 % of the time, and a spare.

        Args:
            interactive: Those that it holds now.
            credits_: Requests that run at a time.
        """
        spare = max(credits_ // _SPARE, 1) if credits_ > 1 else 0
        return max(interactive + spare, self._usual)

    def _count(self) -> int:
        total, above = sum(self._time_s.values()), 0.0
        for count in sorted(self._time_s, reverse=True):
            above += self._time_s[count]
            if above > _RARE * total:
                return count
        return 0

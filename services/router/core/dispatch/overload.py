"""When a model has more to do than it gets done, and for how long that was so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

SHED_AT = 0.5
"""Share of the objective: who must wait longer than that puts the model under pressure."""


class OverloadWindow(NamedTuple):
    """Pressure in a stretch of time.

    Attributes:
        refused: Requests refused, or dropped from the queue, for want of capacity.
        overloaded_s: Time under pressure.
    """

    refused: int
    overloaded_s: float


_NONE = OverloadWindow(0, 0.0)


@dataclass(slots=True)
class Overload:
    """Pressure on one model: from the request that must wait too long until nobody waits.

    Attributes:
        on: It is under pressure.
        refused: Requests refused, or dropped from the queue, for want of capacity; since start.
    """

    on: bool = False
    refused: int = 0
    _lasted: tuple[float, float | None] = (0.0, None)  # before, and since when; read by scrapes
    _told: OverloadWindow = _NONE

    def begin(self, now_s: float) -> None:
        """It is under pressure from now on."""
        self.on, self._lasted = True, (self._lasted[0], now_s)

    def end(self, now_s: float) -> None:
        """It is no more."""
        self.on, self._lasted = False, (self.total_s(now_s), None)

    def total_s(self, now_s: float) -> float:
        """Return for how long it has been since start, s."""
        before_s, since_s = self._lasted
        return before_s + (0.0 if since_s is None else max(now_s - since_s, 0.0))

    def roll(self, now_s: float) -> OverloadWindow:
        """Return what there was since this was last asked."""
        before = self._told
        self._told = OverloadWindow(self.refused, self.total_s(now_s))
        return OverloadWindow(
            self._told.refused - before.refused, self._told.overloaded_s - before.overloaded_s
        )

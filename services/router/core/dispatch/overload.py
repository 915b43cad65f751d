"""Overload of a model: more requests than it can answer in time, and for how long."""

from dataclasses import dataclass
from typing import NamedTuple

SHED_AT = 0.5
"""Share of the objective: a model whose requests must wait longer than that is overloaded."""


class OverloadWindow(NamedTuple):
    """Overload in a window of time.

    Attributes:
        refused: Requests refused, or dropped from the queue, for lack of capacity.
        overloaded_s: Time overloaded.
    """

    refused: int
    overloaded_s: float


_NONE = OverloadWindow(0, 0.0)


@dataclass(slots=True)
class Overload:
    """Overload of one model: from the request that must wait too long until none waits.

    Attributes:
        active: The model is overloaded.
        refused: Requests refused, or dropped from the queue, for lack of capacity; since start.
    """

    active: bool = False
    refused: int = 0
    _lasted: tuple[float, float | None] = (0.0, None)  # before, and since when; read by scrapes
    _reported: OverloadWindow = _NONE

    def begin(self, now_s: float) -> None:
        """Note that the model is overloaded from now on."""
        self.active, self._lasted = True, (self._lasted[0], now_s)

    def end(self, now_s: float) -> None:
        """Note that the model is not overloaded any more."""
        self.active, self._lasted = False, (self.total_s(now_s), None)

    def total_s(self, now_s: float) -> float:
        """Return the time overloaded since start, s."""
        before_s, since_s = self._lasted
        return before_s + (0.0 if since_s is None else max(now_s - since_s, 0.0))

    def roll(self, now_s: float) -> OverloadWindow:
        """Return the overload since the last call."""
        before = self._reported
        self._reported = OverloadWindow(self.refused, self.total_s(now_s))
        return OverloadWindow(
            self._reported.refused - before.refused,
            self._reported.overloaded_s - before.overloaded_s,
        )

"""Release of deferrable requests by the planner's plan: how many may begin, and when.

In a period of the plan they fill what room interactive requests leave, or begin at a rate, which
may be 0. After the last period, as before the first plan, they fill the room: a planner that is
away stops nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_BURST_S: Final = 2.0
"""Time for which an unused rate is kept, s."""


@dataclass(frozen=True, slots=True)
class ReleasePeriod:
    """One period of the plan.

    Attributes:
        since_s, until_s: Monotonic times.
        rate_rps: Requests that may begin per second; infinite: as many as there is room for.
        why: Why no more, for people.
        fill_due_s: Those due by then fill the room whatever the rate, monotonic time.
    """

    since_s: float
    until_s: float
    rate_rps: float
    why: str = ""
    fill_due_s: float = -math.inf


class ReleasePlan:
    """The release of one model.

    Args:
        periods: In order.
    """

    def __init__(self, periods: Sequence[ReleasePeriod] = ()) -> None:
        self._periods = tuple(periods)
        self._tokens, self._filled_s = 0.0, math.nan

    def now(self, now_s: float) -> ReleasePeriod | None:
        """Return the period that a time is in; None: the plan knows none."""
        return next((each for each in self._periods if each.since_s <= now_s < each.until_s), None)

    def budget(self, now_s: float, deadline_s: float = math.inf) -> float:
        """Return the requests with a deadline that may begin now."""
        period = self.now(now_s)
        if period is None or period.rate_rps == math.inf or deadline_s <= period.fill_due_s:
            return math.inf
        if now_s > self._filled_s:
            grown = (now_s - self._filled_s) * period.rate_rps
            self._tokens = min(self._tokens + grown, max(period.rate_rps * _BURST_S, 1.0))
        self._filled_s = now_s
        return self._tokens

    def spend(self) -> None:
        """Count a request that begins; one that is due begins without budget, too."""
        self._tokens = max(self._tokens - 1.0, 0.0)

    def changes_s(self, now_s: float) -> float:
        """Return when more may begin at the latest; infinite: not known."""
        period = self.now(now_s)
        if period is None:
            return math.inf
        if 0 < period.rate_rps < math.inf:
            return min(now_s + max(1.0 - self._tokens, 0.0) / period.rate_rps, period.until_s)
        return period.until_s

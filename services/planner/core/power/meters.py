"""Metered power of sites beside their budgets, and the margin that plans leave below these.

Profiles err: a plan that should keep a budget may draw more. Where agents have to lower clocks for
a while, plans aim below the budget, a step at a time; they come back once the meters allow.
"""

import math
from dataclasses import dataclass
from typing import Final

STEP: Final = 0.04
"""Change of the margin at a time, as a share of the budget."""

MOST: Final = 0.4

WORSE_S: Final = 45.0
"""Time of being capped after which the margin grows, s: a plan and its rollout come before."""

BETTER_S: Final = 600.0
"""Time without a cap, and well below the budget, after which it shrinks, s."""

WELL_BELOW: Final = 0.85

NEAR: Final = 0.9
"""Share of a budget from which lower clocks count as short of power."""

HOLD_S: Final = 3.0
"""Time of being capped after which waiting work pauses, s: lower clocks alone did not end it."""

RESUME_S: Final = 30.0
"""Time well below the budget after which waiting work continues, s; twice as long each time that it
led to another pause within RELAPSE_S, so that it does not come and go."""

MOST_RESUME_S: Final = 960.0

RELAPSE_S: Final = 300.0


@dataclass(slots=True)
class SiteMeter:
    """A site's meters.

    Attributes:
        power_w: Power at the wall, W.
        limit_w: Budget in force, W.
        capped: Whether the power is above the budget, or near it by lower clocks or power limits.
        margin: Share of the budget that plans leave unused.
        holds: Whether waiting work is to pause.
    """

    power_w: float = 0.0
    limit_w: float = 0.0
    capped: bool = False
    margin: float = 0.0
    holds: bool = False
    _since_s: float = 0.0
    _state_s: float = 0.0
    _resume_s: float = RESUME_S
    _resumed_s: float = -math.inf
    _calm: bool | None = None

    def look(self, now_s: float, power_w: float, limit_w: float, *, capped: bool) -> bool:
        """Take over a sample; return whether the margin changed.

        Args:
            now_s: Monotonic time, s.
            power_w: Power at the wall, W.
            limit_w: Budget in force, W.
            capped: Whether agents lower clocks or power limits.
        """
        if limit_w != self.limit_w:
            self._since_s = now_s  # a plan for the new budget comes first
        near = power_w > NEAR * limit_w  # clocks come back soon where it is far below
        self.power_w, self.limit_w = power_w, limit_w
        self.capped = power_w > limit_w or (capped and near)
        calm = None
        if self.capped:
            calm = False
        elif power_w < WELL_BELOW * (1 - self.margin) * limit_w:
            calm = True
        if calm is not self._calm:
            self._calm, self._since_s, self._state_s = calm, now_s, now_s
        self._hold(now_s)
        before, lasted_s = self.margin, now_s - self._since_s
        if calm is False and lasted_s >= WORSE_S:
            self.margin, self._since_s = min(MOST, self.margin + STEP), now_s
        elif calm and lasted_s >= BETTER_S:
            self.margin, self._since_s = max(0.0, self.margin - STEP), now_s
        return self.margin != before

    def _hold(self, now_s: float) -> None:
        """Pause waiting work while capped, and let it go on once there is room for it."""
        lasted_s = now_s - self._state_s
        if not self.holds and self._calm is False and lasted_s >= HOLD_S:
            relapsed = now_s - self._resumed_s < RELAPSE_S
            self._resume_s = min(MOST_RESUME_S, 2 * self._resume_s) if relapsed else RESUME_S
            self.holds = True
        elif self.holds and self._calm and lasted_s >= self._resume_s:
            self.holds, self._resumed_s = False, now_s

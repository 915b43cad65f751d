"""Delays between attempts."""

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Exponential backoff with full jitter; `reset` after success.

    Attributes:
        initial_s: Upper bound of the first delay, s.
        maximum_s: Upper bound of any delay, s.
        rng: Source of the jitter.

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 ("equal
    jitter").
    """

    initial_s: float = 0.05
    maximum_s: float = 2.0
    rng: random.Random = field(default_factory=random.Random)
    _bound_s: float = field(default=0.0, init=False)

    def next_s(self) -> float:
        """Return the next delay, s; at least half the bound, so that attempts are spaced."""
        self._bound_s = min(self.maximum_s, max(self.initial_s, 2 * self._bound_s))
        return self.rng.uniform(self._bound_s / 2, self._bound_s)

    def reset(self) -> None:
        """Start again from `initial_s`."""
        self._bound_s = 0.0

"""How often work may be done that costs more the larger the fleet is."""

from typing import Final

from services.kit.clock import Clock

_SHARE: Final = 0.2
_AT_ONCE_S: Final = 0.5
_MAX_PAUSE_S: Final = 0.5


class Pacing:
    """At most a fifth of the time is spent on the work, or it is done every half second.

    Some of it is done at once, though: a change that comes alone is not kept waiting by the one
    before it. Time is the processor's, so that other processes' work does not lengthen the pauses.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owed_s = 0.0
        self._since_s = clock.monotonic()

    def pause_s(self, spent_s: float) -> float:
        """Return how long to pause after work that took `spent_s` of the processor, s."""
        now_s = self._clock.monotonic()
        owed_s = max(0.0, self._owed_s - (now_s - self._since_s)) + spent_s / _SHARE
        self._owed_s, self._since_s = min(owed_s, _AT_ONCE_S + _MAX_PAUSE_S), now_s
        return max(0.0, self._owed_s - _AT_ONCE_S)

"""Limits of searches in processor time, so that a busy machine changes no plan."""

import time
from typing import Any

import highspy

PATIENCE = 6.0
"""Time by the clock, over the processor time allowed, after which a search ends all the same."""

MIN_TIME_S = 0.01
"""Time for a search whose limit has passed, so that it can at least return its start, s."""

_INTERRUPTS = (
    highspy.cb.HighsCallbackType.kCallbackMipInterrupt,
    highspy.cb.HighsCallbackType.kCallbackSimplexInterrupt,
)


class Stopwatch:
    """Processor time of the thread that made it, or the clock's / PATIENCE where that is more."""

    def __init__(self) -> None:
        self._cpu_s, self._clock_s = time.thread_time(), time.monotonic()
        self._ends_s = 0.0

    @property
    def time_s(self) -> float:
        """Time since it was made, s."""
        clock_s = time.monotonic() - self._clock_s
        return max(time.thread_time() - self._cpu_s, clock_s / PATIENCE)

    def watch(self, highs: Any) -> None:
        """End a solver at the limit; its own limit counts the clock's time."""
        highs.setCallback(self._interrupt, None)
        for kind in _INTERRUPTS:
            highs.startCallback(kind)

    def limit(self, highs: Any, ends_s: float) -> None:
        """Set the limit of the next run of a watched solver, s; see `time_s`."""
        self._ends_s = max(ends_s, self.time_s + MIN_TIME_S)
        left_s = self._ends_s - self.time_s
        highs.setOptionValue("time_limit", highs.getRunTime() + PATIENCE * left_s)

    def _interrupt(self, _kind: Any, _message: str, _output: Any, given: Any, _data: Any) -> None:
        given.user_interrupt = self.time_s >= self._ends_s

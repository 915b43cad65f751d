"""Time as requests see it: it stands still while the simulation skips ahead."""

from collections.abc import Generator
from typing import Any

from simpy import Environment, Event

Waiting = Generator[Event, Any, None]

ROUNDING_S = 1e-9
"""Longest wait that counts as over, s."""


class Timeline:
    """Clock of requests and workers, beside the environment's.

    Work in flight when time stops continues at the same point when time is resumed.

    Attributes:
        env: Events and time of the whole simulation.
        going: Whether requests are simulated now.
        resumed: Event: stopped time is resumed.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.going = True
        self._skipped_s = 0.0
        self._stopped_s = 0.0
        self.resumed = env.event()

    @property
    def now_s(self) -> float:
        """Time now, s."""
        return (self.env.now if self.going else self._stopped_s) - self._skipped_s

    def monotonic(self) -> float:
        """Return the time now, s."""
        return self.now_s

    def stop(self) -> None:
        """Stop time."""
        self.going, self._stopped_s = False, self.env.now
        self.resumed = self.env.event()

    def go(self) -> None:
        """Resume time."""
        self._skipped_s += self.env.now - self._stopped_s
        self.going = True
        self.resumed.succeed()

    def wait(self, duration_s: float) -> Waiting:
        """Wait for an amount of this clock's time, s."""
        env, left_s = self.env, duration_s
        end_s = self.now_s + duration_s
        while left_s > ROUNDING_S:
            yield env.timeout(left_s)
            if not self.going:
                yield self.resumed
            left_s = end_s - (env.now - self._skipped_s)

"""Time as requests see it: it stands still while the simulation skips ahead."""

from collections.abc import Generator
from typing import Any

from simpy import Environment, Event

Waiting = Generator[Event, Any, None]

ROUNDING_S = 1e-9
"""A wait that is no longer is over, s."""


class Timeline:
    """The clock of requests and workers, beside the environment's.

    What is in flight when time stops continues where it was when time is resumed.

    Attributes:
        env: The whole simulation's events and time.
        going: Requests are simulated now.
        resumed: Happens when time that stands still is resumed.
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
        """Let time stand still."""
        self.going, self._stopped_s = False, self.env.now
        self.resumed = self.env.event()

    def go(self) -> None:
        """Let time go on."""
        self._skipped_s += self.env.now - self._stopped_s
        self.going = True
        self.resumed.succeed()

    def wait(self, duration_s: float) -> Waiting:
        """Wait for so much of this clock's time, s."""
        env, left_s = self.env, duration_s
        end_s = self.now_s + duration_s
        while left_s > ROUNDING_S:
            yield env.timeout(left_s)
            if not self.going:
                yield self.resumed
            left_s = end_s - (env.now - self._skipped_s)

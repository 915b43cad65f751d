"""How fast an instance answers, from what it did: streaming estimates, a few operations each."""

from __future__ import annotations

_MEMORY = 1 / 16  # weight of the newest answer: some two batches of eight
_DOUBT = 1 - 1 / 256


class LatencyEstimator:
    """Estimates of one instance, s; 0: nothing is known yet.

    Attributes:
        hold_s: Mean time that a request is with it, waiting there included.
        deviation_s: Mean deviation from that.
        unit_s: Mean time per request that it then had: what one more there adds. This is service
            time over parallelism as it comes out, batching and all.

    Source of mean and deviation: Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988.
    """

    __slots__ = ("deviation_s", "hold_s", "unit_s")

    def __init__(self) -> None:
        self.hold_s = self.deviation_s = self.unit_s = 0.0

    def observe(self, hold_s: float, place: int) -> None:
        """Learn from an answer.

        Args:
            hold_s: From sending to answer.
            place: Requests that the instance had when it was sent, itself included, >= 1.
        """
        if hold_s <= 0:
            return
        if self.hold_s == 0:
            self.hold_s, self.unit_s = hold_s, hold_s / place
            return
        error_s = hold_s - self.hold_s
        self.hold_s += _MEMORY * error_s
        self.deviation_s += _MEMORY * (abs(error_s) - self.deviation_s)
        self.unit_s += _MEMORY * (hold_s / place - self.unit_s)

    def doubt(self) -> None:
        """Trust a bad opinion a little less, so that what was slow once is tried again."""
        self.unit_s *= _DOUBT

    @property
    def soonest_s(self) -> float:
        """How soon an answer may be hoped for."""
        return max(self.hold_s - self.deviation_s, 0.0)

    @property
    def likely_s(self) -> float:
        """By when an answer may be counted on."""
        return self.hold_s + self.deviation_s

"""Streaming estimate of an instance's latency: a few operations per answer."""

from dataclasses import dataclass

_WEIGHT = 1 / 16  # of the newest answer: some two batches of eight
_PASSED_OVER = 1 - 1 / 256


@dataclass(slots=True)
class LatencyEstimator:
    """Estimates of one instance, s; 0: no answer has come yet.

    Attributes:
        hold_s: Mean time that the instance holds a request, waiting in the worker included.
        deviation_s: Mean deviation from `hold_s`.
        unit_s: Mean of the hold time over the requests held: what one more request adds. This is
            the service time over the parallelism, batching included.

    Source of mean and deviation: Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988.
    """

    hold_s: float = 0.0
    deviation_s: float = 0.0
    unit_s: float = 0.0

    def observe(self, hold_s: float, load: int) -> None:
        """Update the estimates with an answer.

        Args:
            hold_s: Time from assignment to answer.
            load: Requests that the instance held at the assignment, this one included, >= 1.
        """
        if hold_s <= 0:
            return
        if self.hold_s == 0:
            self.hold_s, self.unit_s = hold_s, hold_s / load
            return
        error_s = hold_s - self.hold_s
        self.hold_s += _WEIGHT * error_s
        self.deviation_s += _WEIGHT * (abs(error_s) - self.deviation_s)
        self.unit_s += _WEIGHT * (hold_s / load - self.unit_s)

    def pass_over(self) -> None:
        """Lower the estimate a little, so that an instance once slow is eventually tried again."""
        self.unit_s *= _PASSED_OVER

    @property
    def soonest_s(self) -> float:
        """Optimistic estimate of the time to an answer."""
        return max(self.hold_s - self.deviation_s, 0.0)

    @property
    def likely_s(self) -> float:
        """Conservative estimate of the time to an answer."""
        return self.hold_s + self.deviation_s

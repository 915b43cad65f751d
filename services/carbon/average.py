"""The mean of a step function over a window that moves with time."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from fractions import Fraction

from services.carbon.domain import Sample

_MICROSECOND = timedelta(microseconds=1)


class MovingAverage:
    """Time-weighted mean intensity over the last `window`; each step costs amortised O(1).

    The area under the curve is kept as an exact fraction: terms are added when they enter and
    subtracted when they leave, and floats would leave a residue that grows for ever.
    """

    def __init__(self, window: timedelta) -> None:
        self._window = window
        self._steps: deque[Sample] = deque()
        self._area = Fraction()

    def push(self, sample: Sample) -> float:
        """Take the next sample; return the mean over the window that ends where it begins.

        Without a past the mean is the sample itself.

        Args:
            sample: Begins later than the one before.
        """
        if self._steps:
            self._area += _area(self._steps[-1], sample)
        self._steps.append(sample)
        begin = sample.since - self._window
        while len(self._steps) > 1 and self._steps[1].since <= begin:
            self._area -= _area(self._steps[0], self._steps[1])
            self._steps.popleft()
        return self._mean(begin, sample)

    def _mean(self, begin: datetime, sample: Sample) -> float:
        first = self._steps[0]
        if first is sample:
            return sample.intensity_gco2e_per_kwh
        begin = max(begin, first.since)
        cut = _area(first, Sample(begin, 0.0))
        return float((self._area - cut) / ((sample.since - begin) // _MICROSECOND))


def _area(step: Sample, following: Sample) -> Fraction:
    """Return intensity times duration of a step, gCO2e/kWh x us."""
    duration_us = (following.since - step.since) // _MICROSECOND
    return Fraction(step.intensity_gco2e_per_kwh) * duration_us

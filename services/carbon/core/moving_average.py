"""The mean of a step function over a window that moves with time."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from typing import Final

from services.carbon.core.model import Sample

_MICROSECOND = timedelta(microseconds=1)
_FLOAT_BITS: Final = 1074
"""Every float is a whole multiple of 2**-1074."""


class MovingAverage:
    """Time-weighted mean intensity over the last `window`; each step costs amortised O(1).

    The area under the curve is kept as an exact integer: terms are added when they enter and
    subtracted when they leave, and with floats a residue would accumulate.
    """

    def __init__(self, window: timedelta) -> None:
        self._window = window
        self._steps: deque[Sample] = deque()
        self._area = 0

    def push(self, sample: Sample) -> float:
        """Add the next sample; return the mean over the window that ends where it begins.

        Without a past the mean is the sample itself.

        Args:
            sample: The sample, later than the one before.
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
        duration_us = (sample.since - begin) // _MICROSECOND
        return (self._area - cut) / (duration_us << _FLOAT_BITS)


def _area(step: Sample, following: Sample) -> int:
    """Return intensity times duration of a step, 2**-1074 gCO2e/kWh x us."""
    duration_us = (following.since - step.since) // _MICROSECOND
    numerator, denominator = step.intensity_gco2e_per_kwh.as_integer_ratio()
    return (numerator << _FLOAT_BITS + 1 - denominator.bit_length()) * duration_us

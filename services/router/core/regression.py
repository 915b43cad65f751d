"""A streaming regression line that forgets."""

from dataclasses import dataclass
from typing import Final

MIN_WEIGHT: Final = 1 / 64
"""Of the newest value, so that a change shows after some dozens."""

_MIN_VARIANCE: Final = 1e-9


@dataclass(slots=True)
class Regression:
    """Least squares of one quantity over the size, newer values weighted more.

    Attributes:
        weight: Of all values together; the newest has 1.
        size, value: Means.
        variance, covariance: Of the size; of the size and the value.
    """

    weight: float = 0.0
    size: float = 0.0
    value: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0

    def add(self, size: float, value: float) -> None:
        """Learn from a value at a size."""
        self.weight = min(self.weight + 1.0, 1 / MIN_WEIGHT)
        share = 1.0 / self.weight
        off = size - self.size
        self.size += share * off
        self.value += share * (value - self.value)
        self.variance += share * (off * (size - self.size) - self.variance)
        self.covariance += share * (off * (value - self.value) - self.covariance)

    def at(self, size: float) -> float:
        """Return the value on the line; where only one size was seen, the least it can be.

        That is in proportion for smaller sizes, and the same for larger ones: what counted as more
        than it is would never be tried.
        """
        if self.variance <= _MIN_VARIANCE:
            return self.value * min(size / self.size, 1.0) if self.size > 0 else self.value
        return max(self.value + self.covariance / self.variance * (size - self.size), 0.0)

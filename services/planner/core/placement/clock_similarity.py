"""Which device suits a partition: the one whose partitions follow the clock as it does.

mu-Serve (ATC'24), Algorithm 2: a device's clock can drop as far as its most sensitive partition
lets it, so that a sensitive one spoils it for all others.
"""

from __future__ import annotations

from collections.abc import Iterable

ALIKE = 0.1
"""Sensitivities that differ by less are alike: a device in use is then as good as an empty one."""


def fitting_score(sensitivity: float, others: Iterable[tuple[float, float]]) -> float:
    """Return how well a partition suits those on a device already; 0 is best.

    Args:
        sensitivity: The partition's.
        others: Sensitivity and weight of each partition on the device. Where there is none, the
            paper leaves the score undefined; here an empty device is taken before one whose
            partitions differ by more than ALIKE.

    Returns:
        Minus the distance to their weighted mean (section 3.2).
    """
    pairs = list(others)
    total = sum(weight for _, weight in pairs)
    if total <= 0:
        return -ALIKE
    mean = sum(value * weight for value, weight in pairs) / total
    return -abs(sensitivity - mean)

"""Latency Estimation Module: time and energy of requests, by size, on one class of GPU.

Streaming and bounded: a running mean per observed size, and a regression line for other sizes.

Source: CARBONDIS, section IV-B ("the average latency of previous requests with the same batch
size"). Ours: a mean that forgets, its deviation, the line, and the bound on sizes.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from services.router.core.regression import MIN_WEIGHT, Regression


class Estimate(NamedTuple):
    """Expected time and energy of a request.

    Attributes:
        latency_s: Mean processing time, s.
        deviation_s: Mean deviation from it, s.
        energy_j: Mean energy above idle power, J.
    """

    latency_s: float
    deviation_s: float
    energy_j: float


@dataclass(slots=True)
class _Observed:
    """Running means of one size."""

    count: int = 0
    latency_s: float = 0.0
    deviation_s: float = 0.0
    energy_j: float = 0.0

    def add(self, latency_s: float, energy_j: float) -> None:
        self.count += 1
        weight = max(1 / self.count, MIN_WEIGHT)
        error_s = latency_s - self.latency_s
        self.latency_s += weight * error_s
        self.energy_j += weight * (energy_j - self.energy_j)
        if self.count > 1:
            self.deviation_s += weight * (abs(error_s) - self.deviation_s)


@dataclass(slots=True)
class LatencyHistory:
    """Time and energy of one model's requests on one class of GPU.

    Args:
        max_sizes: Sizes kept apart, >= 1; the least recently observed one is dropped.
    """

    max_sizes: int = 256
    _sizes: OrderedDict[int, _Observed] = field(default_factory=OrderedDict)
    _latency: Regression = field(default_factory=Regression)
    _energy: Regression = field(default_factory=Regression)

    def add(self, size: int, latency_s: float, energy_j: float = 0.0) -> None:
        """Learn from a served request; values that are not finite are ignored."""
        if not (math.isfinite(latency_s) and math.isfinite(energy_j) and latency_s >= 0):
            return
        seen = self._sizes.get(size)
        if seen is None:
            seen = self._sizes[size] = _Observed()
            if len(self._sizes) > self.max_sizes:
                self._sizes.popitem(last=False)
        self._sizes.move_to_end(size)
        seen.add(latency_s, energy_j)
        self._latency.add(size, latency_s)
        self._energy.add(size, energy_j)

    def estimate(self, size: int) -> Estimate | None:
        """Return the expectation for a request of a size; None: none was ever served."""
        seen = self._sizes.get(size)
        if seen is not None:
            return Estimate(seen.latency_s, seen.deviation_s, seen.energy_j)
        if not self._sizes:
            return None
        return Estimate(self._latency.at(size), 0.0, self._energy.at(size))

    def __len__(self) -> int:
        return len(self._sizes)

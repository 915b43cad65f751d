"""Timed batches, and the rule for when there are enough. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, quantiles, stdev

from services.kit.errors import InvalidArgument
from services.kit.profiles.core.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Effort:
    """Duration of a point's measurement.

    Attributes:
        warm_up_s: Time whose batches do not count, s. On a real GPU more than two readings of its
            energy meter (0.5 s each): the power of a batch is that of the readings before.
        warm_up_batches: The same, in batches of all processes together.
        least_s, least_batches: Both must be reached.
        most_s: Then it ends in any case, s.
        error: Standard error of the mean latency, relative to it, below which it may end.
    """

    warm_up_s: float = 1.5
    warm_up_batches: int = 6
    least_s: float = 2.0
    least_batches: int = 30
    most_s: float = 10.0
    error: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.least_s <= self.most_s:
            raise InvalidArgument(f"least_s must be 0..{self.most_s}, got {self.least_s}")


@dataclass(frozen=True, slots=True)
class Timed:
    """One batch. Attributes: latency_s, energy_j, method (how the energy was obtained)."""

    latency_s: float
    energy_j: float
    method: str


def timed(point: Measurement, times_s: Sequence[float]) -> Measurement:
    """Return the measurement of a point with the times of two or more batches, s."""
    return replace(
        point,
        latency_s=fmean(times_s),
        latency_p50_s=median(times_s),
        latency_p95_s=quantiles(times_s, n=20, method="inclusive")[-1],
        latency_std_s=stdev(times_s),
        batches=len(times_s),
    )


@dataclass(slots=True)
class _Pace:
    """Pace of one worker. Attributes: since_s (end of its last warm-up batch), last_s, batches."""

    since_s: float
    last_s: float = 0.0
    batches: int = 0

    @property
    def batches_per_s(self) -> float:
        return self.batches / (self.last_s - self.since_s) if self.batches else 0.0


@dataclass(slots=True)
class Samples:
    """The batches of one point, of all its workers.

    Attributes:
        effort: How many are wanted.
        items: In each batch.
        began_s: When the first batch was sent.
    """

    effort: Effort
    items: int
    began_s: float
    _warm_ups: int = 0
    _warm_s: float | None = None  # when the warm-up was over
    _mean_s: float = 0.0
    _squares: float = 0.0  # sum of squared deviations from the mean (Welford), s2
    _timed: list[Timed] = field(default_factory=list)
    _paces: dict[str, _Pace] = field(default_factory=dict)

    def add(self, worker: str, batch: Timed, now_s: float) -> None:
        """Take in a batch of a worker that ended now; one of the warm-up is only counted."""
        if self._warm_s is None or worker not in self._paces:
            self._paces[worker] = _Pace(now_s)
            self._warm_up(now_s)
        elif not self.enough(now_s):
            self._time(batch)
            pace = self._paces[worker]
            pace.last_s = now_s
            pace.batches += 1

    def enough(self, now_s: float) -> bool:
        """Return whether the error is small enough, or the time is used up."""
        if self._warm_s is None or len(self._timed) < 2:
            return False
        elapsed_s = now_s - self._warm_s
        if elapsed_s >= self.effort.most_s:
            return True
        few = len(self._timed) < self.effort.least_batches
        return not few and elapsed_s >= self.effort.least_s and self._error() < self.effort.error

    def added_to(self, point: Measurement) -> Measurement:
        """Return the measurement of a point with what the batches say; there are two or more."""
        times_s = [batch.latency_s for batch in self._timed]
        return replace(
            timed(point, times_s),
            throughput_rps=self.items * sum(p.batches_per_s for p in self._paces.values()),
            energy_j=fmean(batch.energy_j for batch in self._timed),
            energy_method=self._timed[-1].method,
        )

    def _warm_up(self, now_s: float) -> None:
        self._warm_ups += 1
        warm = now_s - self.began_s >= self.effort.warm_up_s
        if self._warm_s is None and warm and self._warm_ups >= self.effort.warm_up_batches:
            self._warm_s = now_s

    def _time(self, batch: Timed) -> None:
        self._timed.append(batch)
        before_s = batch.latency_s - self._mean_s
        self._mean_s += before_s / len(self._timed)
        self._squares += before_s * (batch.latency_s - self._mean_s)

    def _error(self) -> float:
        """Return the standard error of the mean latency, relative to it."""
        count = len(self._timed)
        return math.sqrt(self._squares / (count - 1) / count) / self._mean_s

"""Replay of recorded intensities."""

from bisect import bisect_right
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import mode

from services.carbon.core.model import Sample
from services.carbon.core.sources.source import Source


class TraceSource(Source):
    """A recorded step function; each sample holds until the next, over gaps too.

    With `loop` the trace repeats for ever, before its first instant as well as after its last:
    grid time continues, and the last sample holds for as long as most others do. Without it, there
    is nothing before the first sample and the last holds for ever.

    Args:
        name: Origin of the samples, for example "trace:us-cal.csv".
        trace: At least one sample, each later than the one before.
        loop: Whether the trace repeats.

    Raises:
        ValueError: `trace` is empty.
    """

    def __init__(self, name: str, trace: tuple[Sample, ...], *, loop: bool) -> None:
        if not trace:
            raise ValueError(f"{name} has no samples")
        self.name = name
        self._trace = trace
        self._starts = [sample.since for sample in trace]
        self._period = _period(self._starts) if loop else timedelta()

    def at(self, when: datetime) -> Sample | None:
        """Return the sample in force at `when`; None before the first."""
        shift = self._shift(when)
        index = bisect_right(self._starts, when - shift) - 1
        if index < 0:
            return None
        sample = self._trace[index]
        return Sample(sample.since + shift, sample.intensity_gco2e_per_kwh)

    def next_change(self, when: datetime) -> datetime | None:
        """Return the start of the sample after the one in force at `when`; None: no more."""
        shift = self._shift(when)
        index = bisect_right(self._starts, when - shift)
        if index < len(self._starts):
            return self._starts[index] + shift
        return self._starts[0] + shift + self._period if self._period else None

    def observed_since(self) -> datetime:
        """Return the start of the recording."""
        return self._starts[0]

    def _shift(self, when: datetime) -> timedelta:
        """Return how much later than recorded the repetition around `when` runs."""
        if not self._period:
            return timedelta()
        return (when - self._starts[0]) // self._period * self._period


def _period(starts: list[datetime]) -> timedelta:
    steps = [later - earlier for earlier, later in pairwise(starts)]
    return starts[-1] - starts[0] + mode(steps) if steps else timedelta()

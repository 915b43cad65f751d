"""What every source of carbon intensity can do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Protocol

from services.carbon.core.forecast.bias_correction import Foretold
from services.carbon.core.model import Sample


class Source(Protocol):
    """A step function of grid time. Pure: what it needs, it read when it was made."""

    @property
    def name(self) -> str:
        """Kind and place, for example "synthetic" or "trace:us-cal.csv"."""
        ...

    @property
    def begins(self) -> datetime | None:
        """First instant of what was really observed; None: no such limit.

        A recording that repeats has values before it too, but those are copies of what is still
        to come, from which nothing may be forecast.
        """
        ...

    def at(self, when: datetime) -> Sample | None:
        """Return the sample in force at `when`; None before the first."""
        ...

    def next_change(self, when: datetime) -> datetime | None:
        """Return the first instant after `when` at which a new sample begins; None: never."""
        ...

    def foretold(self, now: datetime) -> Foretold | None:
        """Return who else foretells the source; None: nobody does, or is asked."""
        ...


def samples(source: Source, start: datetime, end: datetime) -> Iterator[Sample]:
    """Yield the samples in force at some instant of [start, end], oldest first."""
    when: datetime | None = start
    while when is not None and when <= end:
        sample = source.at(when)
        if sample is not None:
            yield sample
        when = source.next_change(when)

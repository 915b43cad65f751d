"""Interface of every source of carbon intensity."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime

from services.carbon.core.forecast.bias_correction import ProviderForecast
from services.carbon.core.model import Sample


class Source(ABC):
    """A step function of grid time, without I/O.

    Attributes:
        name: Kind and place, for example "synthetic" or "trace:us-cal.csv".
    """

    name: str

    @abstractmethod
    def at(self, when: datetime) -> Sample | None:
        """Return the sample in force at `when`; None before the first."""

    @abstractmethod
    def next_change(self, when: datetime) -> datetime | None:
        """Return the first instant after `when` at which a new sample begins; None: never."""

    def observed_since(self) -> datetime | None:
        """Return the first instant that was really observed; None: no such limit.

        A repeating recording has values before it, too, but those are copies of future values, from
        which nothing may be forecast.
        """
        return None

    def provider_forecast(self, now: datetime) -> ProviderForecast | None:
        """Return the forecast of the source's provider; None without one."""
        del now
        return None


def samples(source: Source, start: datetime, end: datetime) -> Iterator[Sample]:
    """Yield the samples in force at some instant of [start, end], oldest first."""
    when: datetime | None = start
    while when is not None and when <= end:
        sample = source.at(when)
        if sample is not None:
            yield sample
        when = source.next_change(when)

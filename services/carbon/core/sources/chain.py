"""Several sources of one zone: the first with a value, else the last value, else an assumption.

    t ------------------------------------------------------------------------------>
    first     [== 12:00 ==|== 12:30 ==| silent ...
    fallback  [== 12:00 ==============|== 13:00 ==============| silent ...
    chain     [ first     | first     | fallback              | held until hold | assumed

The chain is a step function of grid time and of the values of its sources alone: a late or revised
value changes the past as if it had come in time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate

from services.carbon.core.forecast.bias_correction import ProviderForecast
from services.carbon.core.model import Sample
from services.carbon.core.sources.feed import Feed
from services.carbon.core.sources.source import Source


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One source of a chain.

    Attributes:
        source: The source.
        fresh: Age at which a sample expires; None: never.
    """

    source: Source
    fresh: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Assumption:
    """The value after all sources have been silent for long.

    Attributes:
        intensity_gco2e_per_kwh: The value.
        hold: Duration for which the last value holds before it is replaced.
        start: Start of the service, before which nothing is assumed.
    """

    intensity_gco2e_per_kwh: float
    hold: timedelta
    start: datetime


@dataclass(frozen=True, slots=True)
class _Known:
    """Sample of one link at an instant. Attributes: sample, expires (None: never)."""

    sample: Sample
    expires: datetime | None


class Chain(Source):
    """Sources in order of preference.

    Args:
        links: The sources, at least one.
        assumption: Value for long outages; None: the last value holds.
        use_outlooks: Whether the providers' forecasts are used.
    """

    def __init__(
        self,
        links: tuple[ChainLink, ...],
        assumption: Assumption | None = None,
        *,
        use_outlooks: bool = False,
    ) -> None:
        self.name = " -> ".join(link.source.name for link in links)
        self._links = links
        self._assumption = assumption
        self._uses_outlooks = use_outlooks

    def observed_since(self) -> datetime | None:
        """Return the first instant that a source has observed."""
        starts = (link.source.observed_since() for link in self._links)
        return min((each for each in starts if each is not None), default=None)

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """The live sources, in order."""
        sources = (link.source for link in self._links)
        return tuple(source for source in sources if isinstance(source, Feed))

    def provider_forecast(self, now: datetime) -> ProviderForecast | None:
        """Return the forecast of the first source that has one and is not silent."""
        for link in self._links if self._uses_outlooks else ():
            found, sample = link.source.provider_forecast(now), link.source.at(now)
            if found is not None and sample is not None and not _expired(link, sample, now):
                return found
        return None

    def at(self, when: datetime) -> Sample | None:
        """Return the sample in force at `when`; None before the first value."""
        known = tuple(self._known(when))
        since = datetime.min.replace(tzinfo=when.tzinfo)  # when the links before had fallen silent
        for each in known:
            if each.expires is None or when < each.expires:
                return _from(since, each.sample)
            since = max(since, each.expires)
        if not known:
            return self._assumed(when, None)
        if self._assumption is not None and when >= since + self._assumption.hold:
            return self._assumed(when, _newest(known).as_of or _newest(known).since, since)
        return self._held(known)

    def next_change(self, when: datetime) -> datetime | None:
        """Return the first instant after `when` at which the sample in force may be another."""
        changes = [change for change in self._changes(when) if change > when]
        return min(changes, default=None)

    def _changes(self, when: datetime) -> Iterator[datetime]:
        if self._assumption is not None:
            yield self._assumption.start
        for link in self._links:
            change = link.source.next_change(when)
            if change is not None:
                yield change
        for each in self._known(when):
            if each.expires is not None:
                yield each.expires
                if self._assumption is not None:
                    yield each.expires + self._assumption.hold

    def _known(self, when: datetime) -> Iterator[_Known]:
        for link in self._links:
            sample = link.source.at(when)
            if sample is not None:
                named = replace(sample, source=link.source.name)
                yield _Known(named, None if link.fresh is None else sample.since + link.fresh)

    def _held(self, known: tuple[_Known, ...]) -> Sample:
        """Return the sample that expired last; of several, that of the first link."""
        ends = [each.expires for each in known if each.expires is not None]
        last = ends.index(max(ends))
        silent = list(accumulate(ends, max))
        since = silent[last - 1] if last else known[0].sample.since
        return replace(_from(since, known[last].sample), provenance="held")

    def _assumed(
        self, when: datetime, as_of: datetime | None, silent: datetime | None = None
    ) -> Sample | None:
        assumption = self._assumption
        if assumption is None or (silent is None and when < assumption.start):
            return None
        since = assumption.start if silent is None else silent + assumption.hold
        return Sample(
            since,
            assumption.intensity_gco2e_per_kwh,
            "assumed",
            "static",
            as_of or assumption.start,
        )


def _expired(link: ChainLink, sample: Sample, now: datetime) -> bool:
    return link.fresh is not None and now >= sample.since + link.fresh


def _from(since: datetime, sample: Sample) -> Sample:
    """Return a sample as it holds from `since`, where it began earlier."""
    if sample.since >= since:
        return sample
    return replace(sample, since=since, as_of=sample.as_of or sample.since)


def _newest(known: tuple[_Known, ...]) -> Sample:
    return max((each.sample for each in known), key=lambda sample: sample.as_of or sample.since)

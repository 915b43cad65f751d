"""Several sources of one zone: the first that knows, else what was last known, else a guess.

    t ------------------------------------------------------------------------------>
    first     [== 12:00 ==|== 12:30 ==| silent ...
    fallback  [== 12:00 ==============|== 13:00 ==============| silent ...
    chain     [ first     | first     | fallback              | held until hold | assumed

The chain is a step function of grid time and of what its sources know, and of nothing else: what a
source says late, or corrects, changes the past as if it had been said in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate

from services.carbon.core.forecast.bias_correction import Foretold
from services.carbon.core.model import Sample
from services.carbon.core.sources.feed import Feed
from services.carbon.core.sources.source import Source


@dataclass(frozen=True, slots=True)
class Link:
    """One source of a chain.

    Attributes:
        source: Who is asked.
        fresh: A sample that began longer ago is not the present any more; None: it always is.
    """

    source: Source
    fresh: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Assumption:
    """What stands in where nobody has known anything for long.

    Attributes:
        intensity_gco2e_per_kwh: The value.
        hold: How long the last known value stands before.
        start: When the service began: so long ago there was nobody to know anything.
    """

    intensity_gco2e_per_kwh: float
    hold: timedelta
    start: datetime


@dataclass(frozen=True, slots=True)
class _Known:
    """What one link knows at an instant. Attributes: sample, expires (None: never)."""

    sample: Sample
    expires: datetime | None


class Chain:
    """Links in order of trust.

    Args:
        links: At least one.
        assumption: None: the last known value stands for ever.
        foretells: Its sources' forecasts are wanted.
    """

    def __init__(
        self,
        links: tuple[Link, ...],
        assumption: Assumption | None = None,
        *,
        foretells: bool = False,
    ) -> None:
        self._links = links
        self._assumption = assumption
        self._foretells = foretells

    @property
    def name(self) -> str:
        """The sources in order, for example "neso -> electricity-maps:GB"."""
        return " -> ".join(link.source.name for link in self._links)

    @property
    def begins(self) -> datetime | None:
        """First instant that a source has observed; None: no such limit, or nothing yet."""
        return min((at for link in self._links if (at := link.source.begins)), default=None)

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """The live ones, in order."""
        sources = (link.source for link in self._links)
        return tuple(source for source in sources if isinstance(source, Feed))

    def foretold(self, now: datetime) -> Foretold | None:
        """Return who foretells, and what: the first source that still speaks and looks ahead."""
        for link in self._links if self._foretells else ():
            found, sample = link.source.foretold(now), link.source.at(now)
            if found is not None and sample is not None and not _expired(link, sample, now):
                return found
        return None

    def at(self, when: datetime) -> Sample | None:
        """Return the sample in force at `when`; None where nobody has known anything yet."""
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
        """Return what was in force last: the sample that expired last, of several the first's."""
        ends = [each.expires for each in known if each.expires is not None]
        last = ends.index(max(ends))
        silent = list(accumulate(ends, max))
        since = silent[last - 1] if last else known[0].sample.since
        return replace(_from(since, known[last].sample), provenance="held")

    def _assumed(
        self, when: datetime, as_of: datetime | None, silent: datetime | None = None
    ) -> Sample | None:
        guess = self._assumption
        if guess is None or (silent is None and when < guess.start):
            return None
        since = guess.start if silent is None else silent + guess.hold
        return Sample(
            since, guess.intensity_gco2e_per_kwh, "assumed", "static", as_of or guess.start
        )


def _expired(link: Link, sample: Sample, now: datetime) -> bool:
    return link.fresh is not None and now >= sample.since + link.fresh


def _from(since: datetime, sample: Sample) -> Sample:
    """Return a sample as it holds from `since`, where it began earlier."""
    if sample.since >= since:
        return sample
    return replace(sample, since=since, as_of=sample.as_of or sample.since)


def _newest(known: tuple[_Known, ...]) -> Sample:
    return max((each.sample for each in known), key=lambda sample: sample.as_of or sample.since)

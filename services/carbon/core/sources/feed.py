"""What one live source has said so far."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from services.carbon.core.forecast.bias_correction import Foretold, TrackRecord
from services.carbon.core.model import HIGHEST_GCO2E_PER_KWH, Sample
from services.carbon.core.sources.provider import Outlook, Reading

KEPT = timedelta(days=112)
"""As far back as forecasts look."""

MOST = 40_000
"""A bound on memory, for providers that speak every few seconds: the newest are kept."""

_AHEAD = timedelta(hours=1)
"""So far may a provider's clock, or ours, be wrong."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What came of a reading.

    Attributes:
        since: From where on the step function is not what it was; None: it is.
        refused: Why values were left out, a sentence each.
    """

    since: datetime | None
    refused: tuple[str, ...]


class Feed:
    """A step function that grows, and whose past may be revised.

    Each sample holds until the next, over gaps too: how long that is worth something is for the
    chain to judge.

    Args:
        name: Of the provider.
        highest: Values above are absurd.
    """

    def __init__(self, name: str, *, highest: float = HIGHEST_GCO2E_PER_KWH) -> None:
        self.name = name
        self.outlook: Outlook | None = None
        self.record = TrackRecord()
        self._highest = highest
        self._samples: list[Sample] = []

    @property
    def begins(self) -> datetime | None:
        """First instant known; None: nothing is."""
        return self._samples[0].since if self._samples else None

    @property
    def known(self) -> tuple[Sample, ...]:
        """Return all samples, oldest first."""
        return tuple(self._samples)

    @property
    def known_until(self) -> datetime | None:
        """Start of the newest sample; None: there is none."""
        return self._samples[-1].since if self._samples else None

    def foretold(self, now: datetime) -> Foretold | None:
        """Return its provider's forecast, as long as there is some of it to come."""
        ahead = self.outlook
        if ahead is None or ahead.samples[-1].since + ahead.step <= now:
            return None
        return Foretold(self.name, ahead, self.record)

    def at(self, when: datetime) -> Sample | None:
        """Return the sample in force at `when`; None before the first."""
        index = bisect_right(self._samples, when, key=_since) - 1
        return self._samples[index] if index >= 0 else None

    def next_change(self, when: datetime) -> datetime | None:
        """Return when the next sample known begins."""
        index = bisect_right(self._samples, when, key=_since)
        return self._samples[index].since if index < len(self._samples) else None

    def learn(self, reading: Reading, now: datetime) -> Learnt:
        """Take in a reading, in whatever order it comes.

        What is known already is no news; another value for a known instant is a revision, and the
        newer word counts. Of several values for one instant, the last counts. What was measured is
        not overruled by what was only forecast.

        Args:
            reading: What the provider said.
            now: Grid time. What begins later than clocks may differ is left out: it is no fact.
        """
        refused: list[str] = []
        changed = [
            sample.since
            for sample in self._possible(reading.samples, now, refused)
            if self._put(sample)
        ]
        if reading.outlook is not None:
            self._foresee(reading.outlook, now, refused)
        old = bisect_left(self._samples, now - KEPT, key=_since)
        del self._samples[: max(old, len(self._samples) - MOST)]
        kept = [since for since in changed if since >= self._samples[0].since]
        return Learnt(min(kept, default=None), tuple(refused))

    def _possible(
        self, samples: Iterable[Sample], now: datetime, refused: list[str]
    ) -> Iterator[Sample]:
        for given in samples:
            # Local times of one zone compare by their hands: autumn's double hour would be one.
            sample = replace(given, since=given.since.astimezone(UTC))
            why = self._absurd(sample)
            if sample.since > now + _AHEAD:
                why = "lies in the future"
            if why:
                when = sample.since.isoformat()
                refused.append(f"{sample.intensity_gco2e_per_kwh:g} of {when} {why}")
            elif sample.since >= now - KEPT:
                yield sample

    def _absurd(self, sample: Sample) -> str:
        value = sample.intensity_gco2e_per_kwh
        if math.isfinite(value) and 0 <= value <= self._highest:
            return ""
        return f"is not within 0..{self._highest:g}"

    def _put(self, sample: Sample) -> bool:
        """Take a sample in; return whether anything is different now."""
        index = bisect_left(self._samples, sample.since, key=_since)
        if index == len(self._samples) or self._samples[index].since != sample.since:
            self._samples.insert(index, sample)
            return True
        known = self._samples[index]
        if known == sample or (sample.provenance == "forecast" != known.provenance):
            return False
        self._samples[index] = sample
        return True

    def _foresee(self, outlook: Outlook, now: datetime, refused: list[str]) -> None:
        """Keep a forecast, if all of it can be."""
        wrong = next((why for each in outlook.samples if (why := self._absurd(each))), "")
        if wrong:
            refused.append(f"its forecast: a value {wrong}")
        elif outlook.samples:
            self.outlook = outlook
            self.record.note(outlook, now)


def _since(sample: Sample) -> datetime:
    return sample.since

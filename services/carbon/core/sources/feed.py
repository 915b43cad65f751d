"""Readings and failures of a live source, and its values so far."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Literal

from services.carbon.core.forecast.bias_correction import ForecastRecord, ProviderForecast
from services.carbon.core.model import MAX_GCO2E_PER_KWH, Outlook, Sample
from services.carbon.core.sources.day_gate import DAY, DayGate
from services.carbon.core.sources.source import Source

FailureKind = Literal[
    "unreachable", "limited", "refused", "unknown", "moved", "garbled", "empty", "implausible"
]
"""Cause of a missing reading.

unreachable   no connection, no answer in time, or a server error
limited       too many requests
refused       the key is invalid, or the account does not cover the request
unknown       the zone or the request is unknown
moved         a redirect that is not followed
garbled       the answer cannot be parsed
empty         the answer has no values
implausible   all values of the answer are impossible
"""

Part = Literal["present", "history", "forecast"]
"""A part of a provider's data, which is requested by itself and may fail by itself."""

_MAY_PASS = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


class SourceFailed(Exception):
    """A provider gave no reading, or not a part of it. It holds no key, nor a URL's query.

    Attributes:
        kind: Kind of failure.
        retry_after_s: Time before which the provider refuses requests, s; None: not stated.
        status: HTTP status of the answer; None: there was none, or it was a success.
        parts: Failures of the parts that were requested; None: the part came.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        retry_after_s: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.retry_after_s = retry_after_s
        self.status = status
        self.parts: Mapping[Part, SourceFailed | None] = {}

    @property
    def not_offered(self) -> bool:
        """True: the provider does not have what was requested, or not for this account."""
        status = self.status or 0
        refused = 400 <= status < 500 and status not in _MAY_PASS
        return refused or status == HTTPStatus.NOT_IMPLEMENTED

    @property
    def outcome(self) -> str:
        """Outcome of a part: the kind, or "not_offered"."""
        return "not_offered" if self.not_offered else self.kind

    @property
    def of_provider(self) -> bool:
        """True: other requests to the provider would now fail, too."""
        if self.kind == "unreachable":
            return self.status is None or self.retry_after_s is not None
        return self.kind == "limited"


@dataclass(frozen=True, slots=True)
class Reading:
    """The values of one poll; the feed sorts them and leaves out implausible ones.

    Attributes:
        samples: In any order, known and revised ones included; empty: nothing new.
        outlook: Forecast of the provider; None: none this time.
        parts: Failures of the parts that were requested; None: the part came.
    """

    samples: tuple[Sample, ...] = ()
    outlook: Outlook | None = None
    parts: Mapping[Part, SourceFailed | None] = field(default_factory=dict)

    @property
    def failure(self) -> SourceFailed | None:
        """The reason why there are no samples; None: there are, or nothing has changed."""
        return None if self.samples else self.parts.get("present")


KEEP = timedelta(days=112)
"""Age at which samples are dropped: forecasts use no older ones."""

MAX_SAMPLES = 40_000
"""Maximum number of samples, for providers with steps of seconds: the newest are kept."""

_AHEAD = timedelta(hours=1)
"""Tolerated difference between a provider's clock and ours."""


@dataclass(frozen=True, slots=True)
class FeedUpdate:
    """The result of adding a reading.

    Attributes:
        since: Instant from which the step function has changed; None: nothing has changed.
        refused: Reasons why values were left out, a sentence each.
        plausible: Number of samples that were not left out.
    """

    since: datetime | None
    refused: tuple[str, ...]
    plausible: int


class Feed(Source):
    """A step function that grows, and whose past may be revised.

    Each sample holds until the next, over gaps too: the chain decides for how long it is valid.

    Args:
        name: Name of the provider.
        maximum: Highest plausible value.
        gate: Holds doubtful values back; None: every plausible one is taken.
    """

    def __init__(
        self, name: str, *, maximum: float = MAX_GCO2E_PER_KWH, gate: DayGate | None = None
    ) -> None:
        self.name = name
        self.outlook: Outlook | None = None
        self.record = ForecastRecord()
        self._maximum = maximum
        self._gate = gate
        self._samples: list[Sample] = []

    def observed_since(self) -> datetime | None:
        """Return the start of the oldest sample."""
        return self._samples[0].since if self._samples else None

    @property
    def known(self) -> tuple[Sample, ...]:
        """All samples, oldest first."""
        return tuple(self._samples)

    @property
    def known_until(self) -> datetime | None:
        """Start of the newest sample."""
        return self._samples[-1].since if self._samples else None

    def provider_forecast(self, now: datetime) -> ProviderForecast | None:
        """Return the provider's forecast, unless all of it is past."""
        ahead = self.outlook
        if ahead is None or ahead.samples[-1].since + ahead.step <= now:
            return None
        return ProviderForecast(self.name, ahead, self.record)

    def at(self, when: datetime) -> Sample | None:
        """Return the sample in force at `when`; None before the first."""
        index = bisect_right(self._samples, when, key=_since) - 1
        return self._samples[index] if index >= 0 else None

    def next_change(self, when: datetime) -> datetime | None:
        """Return when the next known sample begins."""
        index = bisect_right(self._samples, when, key=_since)
        return self._samples[index].since if index < len(self._samples) else None

    def add(self, reading: Reading, now: datetime) -> FeedUpdate:
        """Add the samples of a reading, in any order.

        Another value for a known instant is a revision and replaces it; of several values for one
        instant the last one counts. A forecast value never replaces a measured one.

        Args:
            reading: Reading of the provider.
            now: Grid time. Samples that begin later than clocks may differ are left out.
        """
        refused: list[str] = []
        changed, plausible = [], 0
        for sample in self._possible(
            reading.samples, now, refused
        ):  # each is judged by those before
            plausible += 1
            if self._put(sample):
                changed.append(sample.since)
        if reading.outlook is not None:
            self._keep_outlook(reading.outlook, now, refused)
        old = bisect_left(self._samples, now - KEEP, key=_since)
        del self._samples[: max(old, len(self._samples) - MAX_SAMPLES)]
        kept = [since for since in changed if since >= self._samples[0].since]
        return FeedUpdate(min(kept, default=None), tuple(refused), plausible)

    def _possible(
        self, samples: Iterable[Sample], now: datetime, refused: list[str]
    ) -> Iterator[Sample]:
        # Local times of one zone compare by wall time: autumn's double hour would collapse.
        utc = (replace(each, since=each.since.astimezone(UTC)) for each in samples)
        for sample in sorted(utc, key=_since):
            why = self._implausible(sample)
            if sample.since > now + _AHEAD:
                why = "lies in the future"
            if why:
                refused.append(_refusal(sample, why))
            elif sample.since >= now - KEEP:
                yield from self._believed(sample, refused)

    def _believed(self, sample: Sample, refused: list[str]) -> Iterator[Sample]:
        if self._gate is None:
            yield sample
            return
        if sample == self.at(sample.since):
            self._gate.know(sample)
            yield sample
            return
        first = bisect_left(self._samples, sample.since - DAY, key=_since)
        last = bisect_left(self._samples, sample.since, key=_since)
        believed, why = self._gate.passed(sample, self._samples[first:last])
        if why:
            refused.append(_refusal(sample, why))
        yield from believed

    def _implausible(self, sample: Sample) -> str:
        value = sample.intensity_gco2e_per_kwh
        if math.isfinite(value) and 0 <= value <= self._maximum:
            return ""
        return f"is not within 0..{self._maximum:g}"

    def _put(self, sample: Sample) -> bool:
        """Add a sample; return whether anything has changed."""
        index = bisect_left(self._samples, sample.since, key=_since)
        if index == len(self._samples) or self._samples[index].since != sample.since:
            self._samples.insert(index, sample)
            return True
        known = self._samples[index]
        if known == sample or (sample.provenance == "forecast" != known.provenance):
            return False
        self._samples[index] = sample
        return True

    def _keep_outlook(self, outlook: Outlook, now: datetime, refused: list[str]) -> None:
        """Keep a forecast if all of its values are plausible."""
        wrong = next((why for each in outlook.samples if (why := self._implausible(each))), "")
        if wrong:
            refused.append(f"its forecast: a value {wrong}")
        elif outlook.samples:
            self.outlook = outlook
            self.record.note(outlook, now)


def _refusal(sample: Sample, why: str) -> str:
    return f"{sample.intensity_gco2e_per_kwh:g} of {sample.since.isoformat()} {why}"


def _since(sample: Sample) -> datetime:
    return sample.since

"""One zone over grid time: carbon intensity (CI), its average (ACI), ratio (CIR) and forecast."""

from collections import deque
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from cinquefoil.carbon.v1.records import Forecast
from services.carbon.core.forecast.combination import combined
from services.carbon.core.forecast.forecaster import DEPTH, forecast
from services.carbon.core.model import Intensity, Outlook, Sample
from services.carbon.core.sources.source import Source, samples
from services.kit.config.carbon_sources import Signal

_MICROSECOND = timedelta(microseconds=1)
_FLOAT_BITS: Final = 1074
"""Every float is a whole multiple of 2**-1074."""


class MovingAverage:
    """Time-weighted mean intensity over the last `window`; each step costs amortised O(1).

    The area under the curve is kept as an exact integer: terms are added when they enter and
    subtracted when they leave, and with floats a residue would accumulate.
    """

    def __init__(self, window: timedelta) -> None:
        self._window = window
        self._steps: deque[Sample] = deque()
        self._area = 0

    def push(self, sample: Sample) -> float:
        """Add the next sample; return the mean over the window that ends where it begins.

        Without a past the mean is the sample itself.

        Args:
            sample: The sample, later than the one before.
        """
        if self._steps:
            self._area += _area(self._steps[-1], sample)
        self._steps.append(sample)
        begin = sample.since - self._window
        while len(self._steps) > 1 and self._steps[1].since <= begin:
            self._area -= _area(self._steps[0], self._steps[1])
            self._steps.popleft()
        return self._mean(begin, sample)

    def _mean(self, begin: datetime, sample: Sample) -> float:
        first = self._steps[0]
        if first is sample:
            return sample.intensity_gco2e_per_kwh
        begin = max(begin, first.since)
        cut = _area(first, Sample(begin, 0.0))
        duration_us = (sample.since - begin) // _MICROSECOND
        return (self._area - cut) / (duration_us << _FLOAT_BITS)


def _area(step: Sample, following: Sample) -> int:
    """Return intensity times duration of a step, 2**-1074 gCO2e/kWh x us."""
    duration_us = (following.since - step.since) // _MICROSECOND
    numerator, denominator = step.intensity_gco2e_per_kwh.as_integer_ratio()
    return (numerator << _FLOAT_BITS + 1 - denominator.bit_length()) * duration_us


HISTORY = DEPTH
HISTORY_LENGTH = 40_000  # a bound on memory for sources that change every few seconds
_INSTANT = timedelta(microseconds=1)


class Monitor:
    """Reads one source as grid time advances.

    It starts with the source's past, so that the average is right from the first value and a
    restart loses no history.

    Args:
        zone: Electricity grid area.
        source: Source of the intensity.
        start: Grid time now.
        signal: Signal of the source.
        average_window: Window of the average carbon intensity (ACI).
    """

    def __init__(
        self,
        zone: str,
        source: Source,
        start: datetime,
        *,
        signal: Signal,
        average_window: timedelta,
    ) -> None:
        self.zone = zone
        self._source = source
        self._signal: Signal = signal
        self._window = average_window
        self._average = MovingAverage(average_window)
        self._history: deque[Intensity] = deque(maxlen=HISTORY_LENGTH)
        self._forecast: Forecast | None = None
        self._combined: tuple[Outlook, Forecast, Forecast] | None = None
        self._seen_until = max(_first_kept(source, start), start - HISTORY) - average_window
        self.advance(start)

    @property
    def latest(self) -> Intensity | None:
        """The intensity in force at the last `advance`; None before the source's first."""
        return self._history[-1] if self._history else None

    def advance(self, now: datetime) -> Intensity | None:
        """Read the source's samples up to `now`; return the newest if it has changed.

        After the clock was set back nothing changes until it is past its earlier reading.
        """
        before = self.latest
        for sample in samples(self._source, self._seen_until, now):
            latest = self.latest
            if latest is None or sample.since > latest.sample.since:
                self._observe(sample)
            elif sample.since == latest.sample.since and sample != latest.sample:
                self._history[-1] = replace(latest, sample=sample, source=self._name(sample))
        self._seen_until = now
        return None if self.latest is before else self.latest

    def revise(self, since: datetime, now: datetime) -> None:
        """Read the source's samples of `since` and later again, for they were revised.

        Args:
            since: Instant from which the source has changed.
            now: Grid time.
        """
        while self._history and self._history[-1].sample.since > since:
            self._history.pop()
        if self._history:  # the one in force at `since` may have a successor, or a revision
            since = self._history.pop().sample.since
        self._average = MovingAverage(self._window)
        for sample in self._recent(since - self._window):
            self._average.push(sample)
        self._forecast = None
        self._seen_until = min(self._seen_until, since)
        self.advance(now)

    def next_change(self) -> datetime | None:
        """Return when to call `advance` next; None: never."""
        return self._source.next_change(self._seen_until)

    def history(self, start: datetime | None, end: datetime) -> tuple[Intensity, ...]:
        """Return the recorded intensities whose `since` lies in [start, end), oldest first.

        Args:
            start: First instant; None: as far back as history is kept.
            end: End, exclusive.
        """
        return tuple(
            intensity
            for intensity in self._history
            if (start is None or start <= intensity.sample.since) and intensity.sample.since < end
        )

    def forecast(self, now: datetime, horizon: timedelta) -> Forecast | None:
        """Return the forecast until `horizon` after `now`; None before the first value.

        It uses only what was observed up to the last `advance`, and is computed once per period.
        After the clock was set back, it begins with the newest value, which stays in force.

        Args:
            now: Grid time.
            horizon: Horizon, at most MAX_HORIZON.
        """
        latest = self.latest
        if latest is None:
            return None
        now = max(now, latest.sample.since)
        known = self._forecast
        if known is None or not _in_force(known, latest.sample, now):
            known = self._forecast = forecast(self._observed(), now)
        return _until(self._with_provider(known, now), now + horizon)

    @property
    def known_forecast(self) -> Forecast | None:
        """The newest forecast that was computed, or None; safe to read from another thread."""
        own, joint = self._forecast, self._combined
        return joint[2] if joint is not None and joint[1] is own else own

    def _with_provider(self, own: Forecast, now: datetime) -> Forecast:
        """Return the forecast combined with the provider's, if any; computed once, too."""
        found = self._source.provider_forecast(now)
        if found is None:
            return own
        if (
            self._combined is None
            or self._combined[0] is not found.outlook
            or self._combined[1] is not own
        ):
            correction = found.correction(self._observed(), now)
            joint = combined(own, found.outlook, found.name, correction)
            self._combined = (found.outlook, own, joint)
        return self._combined[2]

    def _recent(self, begin: datetime) -> list[Sample]:
        """Return the recorded samples in force at `begin` or later, oldest first."""
        found = []
        for intensity in reversed(self._history):
            found.append(intensity.sample)
            if intensity.sample.since <= begin:
                break
        return found[::-1]

    def _observed(self) -> tuple[Sample, ...]:
        """Return the samples that were really observed; at least the newest."""
        begin = self._source.observed_since()
        samples = (intensity.sample for intensity in self._history)
        seen = tuple(
            sample
            for sample in samples
            if (begin is None or sample.since >= begin) and sample.provenance != "assumed"
        )
        return seen or (self._history[-1].sample,)

    def _observe(self, sample: Sample) -> None:
        intensity = Intensity(
            zone=self.zone,
            signal=self._signal,
            sample=sample,
            average_gco2e_per_kwh=self._average.push(sample),
            source=self._name(sample),
        )
        self._history.append(intensity)
        while self._history[0].sample.since < sample.since - HISTORY:
            self._history.popleft()

    def _name(self, sample: Sample) -> str:
        return sample.source or self._source.name


def _first_kept(source: Source, start: datetime) -> datetime:
    """Return the start of the oldest sample to read.

    A source in steps of seconds has millions of samples in HISTORY: reading them takes minutes.
    """
    begin, end = start, start - HISTORY
    for _ in range(HISTORY_LENGTH):
        sample = source.at(begin)
        if sample is None or sample.since <= end:
            return end
        begin = sample.since - _INSTANT
    return begin


def _until(forecast: Forecast, end: datetime) -> Forecast:
    """Return the periods that begin before `end`, and always the one in force."""
    first, *later = forecast.periods
    kept = (first, *(period for period in later if period.since < end))
    return Forecast(kept, forecast.method)


def _in_force(forecast: Forecast, latest: Sample, now: datetime) -> bool:
    """Return whether a forecast knows `latest` and its first period contains `now`."""
    first = forecast.periods[0]
    return latest.since <= first.since <= now < first.since + first.length

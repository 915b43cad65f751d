"""The carbon service's words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

Signal = Literal["average", "marginal", "percentile"]
"""What a source's numbers mean; they are never mixed.

A percentile is a rank among the zone's own marginal intensities, 0 (clean) .. 100. It weighs
nothing: no carbon can be counted with it.
"""

Provenance = Literal["measured", "estimated", "forecast", "held", "assumed"]
"""How a value is known.

measured    the source says what was
estimated   the source says so, of what it did not measure (all of it)
forecast    the source had foretold it, and has not yet said what came true
held        nobody has said anything for too long: what was last known stands
assumed     nor is that worth anything any more: the deployment file's word for such a time
"""

HIGHEST_GCO2E_PER_KWH = 5000.0
"""No plant emits more; the dirtiest, of oil shale and peat, emit less than half of it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a source says: an intensity and the instant from which it holds.

    Attributes:
        since: Grid time, UTC.
        intensity_gco2e_per_kwh: Carbon intensity (CI), >= 0. In a zone whose signal is
            "percentile": the rank, 0..100.
        provenance: How it is known.
        source: Which of the zone's sources says so; empty: it has one.
        as_of: Instant that it tells of; None: `since`. A fallback's value holds from when it took
            over, and is older.
    """

    since: datetime
    intensity_gco2e_per_kwh: float
    provenance: Provenance = "measured"
    source: str = ""
    as_of: datetime | None = None


@dataclass(frozen=True, slots=True)
class Intensity:
    """A sample seen against its zone's average.

    Attributes:
        zone: Electricity grid area.
        signal: What the number means; values of different signals are never mixed.
        sample: The intensity and since when.
        average_gco2e_per_kwh: Average carbon intensity (ACI) over the window that ends at `since`.
        source: Where the sample comes from, for example "trace:us-cal.csv".
    """

    zone: str
    signal: Signal
    sample: Sample
    average_gco2e_per_kwh: float
    source: str

    def age(self, now: datetime) -> timedelta:
        """Return how old the knowledge is at `now`; never negative, whatever clocks do."""
        return max(now - (self.sample.as_of or self.sample.since), timedelta())

    @property
    def ratio(self) -> float:
        """Carbon intensity ratio CI / ACI; 1 where both are 0.

        Source: CARBONDIS, section IV-A, Algorithm 1, line 2.
        """
        intensity = self.sample.intensity_gco2e_per_kwh
        if self.average_gco2e_per_kwh == 0:
            return 1.0 if intensity == 0 else float("inf")
        return intensity / self.average_gco2e_per_kwh


@dataclass(frozen=True, slots=True)
class Period:
    """A stretch of time to come, with what is expected then.

    Attributes:
        since: Grid time, UTC.
        length: How long it lasts, grid time.
        intensity_gco2e_per_kwh: Expected carbon intensity.
        low_gco2e_per_kwh, high_gco2e_per_kwh: It stays within with a probability of 0.8.
    """

    since: datetime
    length: timedelta
    intensity_gco2e_per_kwh: float
    low_gco2e_per_kwh: float
    high_gco2e_per_kwh: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of a zone.

    Attributes:
        periods: Without holes; the first is in force.
        method: How it came to be.
    """

    periods: tuple[Period, ...]
    method: str

    def until(self, end: datetime) -> Forecast:
        """Return the periods that begin before `end`, and in any case the one in force."""
        first, *later = self.periods
        kept = (first, *(period for period in later if period.since < end))
        return Forecast(kept, self.method)

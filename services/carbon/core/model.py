"""The carbon service's value types."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from services.kit.config.carbon_sources import Signal

Provenance = Literal["measured", "estimated", "forecast", "held", "assumed"]
"""Provenance of a value.

measured    measured by the source
estimated   estimated by the source, at least in part
forecast    forecast by the source, not measured yet
held        the last known value, because no source has had a newer one for too long
assumed     the value of the deployment file for long outages
"""

MAX_GCO2E_PER_KWH = 5000.0
"""Highest plausible intensity; the dirtiest plants, of oil shale and peat, emit less than half."""


def highest_plausible(signal: Signal) -> float:
    """Return the highest plausible value of a signal."""
    return 100.0 if signal == "percentile" else MAX_GCO2E_PER_KWH


@dataclass(frozen=True, slots=True)
class Sample:
    """An intensity and the instant from which it holds.

    Attributes:
        since: Grid time, UTC.
        intensity_gco2e_per_kwh: Carbon intensity (CI), >= 0. In a zone whose signal is
            "percentile": the rank, 0..100.
        provenance: Its provenance.
        source: Name of the source; empty: the zone has only one.
        as_of: Instant that the value describes; None: `since`. A fallback's value holds from when
            the fallback took over, and is older.
    """

    since: datetime
    intensity_gco2e_per_kwh: float
    provenance: Provenance = "measured"
    source: str = ""
    as_of: datetime | None = None


@dataclass(frozen=True, slots=True)
class Intensity:
    """A sample with its zone's average.

    Attributes:
        zone: Electricity grid area.
        signal: Quantity of the sample.
        sample: The intensity and since when.
        average_gco2e_per_kwh: Average carbon intensity (ACI) over the window that ends at `since`.
        source: Origin of the sample, for example "trace:us-cal.csv".
    """

    zone: str
    signal: Signal
    sample: Sample
    average_gco2e_per_kwh: float
    source: str

    def age(self, now: datetime) -> timedelta:
        """Return the age of the value at `now`; never negative, whatever clocks do."""
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
class Outlook:
    """A provider's own forecast.

    Attributes:
        samples: Expected intensities, oldest first; each holds until the next.
        step: Duration of the last one.
        issued: When it was made, grid time.
    """

    samples: tuple[Sample, ...]
    step: timedelta
    issued: datetime

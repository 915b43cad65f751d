"""The carbon service's words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Signal = Literal["average", "marginal"]


@dataclass(frozen=True, slots=True)
class Sample:
    """What a source says: an intensity and the instant from which it holds.

    Attributes:
        since: Grid time, UTC.
        intensity_gco2e_per_kwh: Carbon intensity (CI), >= 0.
    """

    since: datetime
    intensity_gco2e_per_kwh: float


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

    @property
    def ratio(self) -> float:
        """Carbon intensity ratio CI / ACI; 1 where both are 0.

        Source: CARBONDIS, section IV-A, Algorithm 1, line 2.
        """
        intensity = self.sample.intensity_gco2e_per_kwh
        if self.average_gco2e_per_kwh == 0:
            return 1.0 if intensity == 0 else float("inf")
        return intensity / self.average_gco2e_per_kwh

"""Messages of `cinquefoil.carbon.v1` as frozen values; written by `make protos`."""

from dataclasses import dataclass
from datetime import datetime, timedelta, UTC
from enum import IntEnum


class Signal(IntEnum):
    """A provider's way of computing an intensity. Values of different signals are never mixed."""

    UNSPECIFIED = 0
    # Mean over all generation in the zone.
    AVERAGE = 1
    # Of the plant that would answer one more kWh of demand.
    MARGINAL = 2
    # Rank among the zone's own marginal intensities, 0 (clean) to 100; not a mass.
    PERCENTILE = 3

    @classmethod
    def _missing_(cls, value: object) -> "Signal":
        """Return UNSPECIFIED for a value that only newer programs know."""
        return cls.UNSPECIFIED


class Provenance(IntEnum):
    """The origin of a value."""

    UNSPECIFIED = 0
    # The source reports a measurement.
    MEASURED = 1
    # The source reports an estimate, in whole or in part.
    ESTIMATED = 2
    # The source's forecast for this time; it has not yet reported the actual value.
    FORECAST = 3
    # All sources have been silent for too long: the last value is kept.
    HELD = 4
    # The last value is too old as well: a value from the deployment file.
    ASSUMED = 5

    @classmethod
    def _missing_(cls, value: object) -> "Provenance":
        """Return UNSPECIFIED for a value that only newer programs know."""
        return cls.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class ForecastPeriod:
    """One period of a forecast.

    Attributes:
        since: Its start, grid time.
        length: Its length, grid time.
        intensity_gco2e_per_kwh: Expected carbon intensity. Unit: gCO2e per kWh.
        low_gco2e_per_kwh: Bounds that the intensity stays within with a probability of 0.8. Unit:
            gCO2e per kWh.
        high_gco2e_per_kwh: Upper bound; see low. Unit: gCO2e per kWh.
    """

    since: datetime = datetime.fromtimestamp(0, UTC)
    length: timedelta = timedelta()
    intensity_gco2e_per_kwh: float = 0.0
    low_gco2e_per_kwh: float = 0.0
    high_gco2e_per_kwh: float = 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected intensities of one zone, the present period first, without gaps.

    Attributes:
        periods: Periods in order of time.
        method: How the values were computed, for example "seasonal-naive" or the provider's name.
    """

    periods: tuple[ForecastPeriod, ...] = ()
    method: str = ""


@dataclass(frozen=True, slots=True)
class Intensity:
    """The carbon intensity of one zone.

    Attributes:
        zone: Electricity grid area, for example "US-CAL".
        signal: Average, marginal or percentile.
        intensity_gco2e_per_kwh: Carbon intensity (CI). Unit: gCO2e per kWh. NaN where the signal is
            SIGNAL_PERCENTILE, and so are the average and the ratio, so that a rank is never
            mistaken for a mass.
        since: Start of this value's validity, in grid time: under replay, the time of the trace.
        average_gco2e_per_kwh: Average carbon intensity (ACI) over the configured window. Unit:
            gCO2e per kWh.
        ratio: Carbon intensity ratio (CIR): CI / ACI. Unit: 1. (CARBONDIS, section IV-A.)
        source: Where the value comes from, for example "synthetic" or "trace:us-cal.csv".
        staleness: Age of the newest information when this was sent, grid time: since the instant
            that the newest value of any source describes, even while it is held or replaced by an
            assumption.
        forecast: What is expected next; absent unless requested, and for percentiles.
        provenance: How the value was obtained.
        percentile: The rank where the signal is SIGNAL_PERCENTILE, 0..100; unset otherwise.
    """

    zone: str = ""
    signal: Signal = Signal.UNSPECIFIED
    intensity_gco2e_per_kwh: float = 0.0
    since: datetime = datetime.fromtimestamp(0, UTC)
    average_gco2e_per_kwh: float = 0.0
    ratio: float = 0.0
    source: str = ""
    staleness: timedelta = timedelta()
    forecast: Forecast | None = None
    provenance: Provenance = Provenance.UNSPECIFIED
    percentile: float | None = None

"""Metrics of the intensities and of the live sources."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from prometheus_client import Counter, Gauge, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cinquefoil.carbon.v1.records import Forecast
from services.carbon.core.model import Intensity
from services.carbon.runtime.grid_state import GridState
from services.kit.clock import Clock

_OF_SOURCE = ("zone", "source")
UP = Gauge(
    "cinquefoil_carbon_source_up", "1: the last poll of a live source brought values.", _OF_SOURCE
)
POLLS = Counter(
    "cinquefoil_carbon_polls", "Requests to live sources, by outcome.", (*_OF_SOURCE, "outcome")
)
PART_UP = Gauge(
    "cinquefoil_carbon_source_part_up",
    "1: a live source's present value, history or forecast came when it was last requested.",
    (*_OF_SOURCE, "part"),
)
REFUSED = Counter(
    "cinquefoil_carbon_values_refused", "Implausible values of live sources, left out.", _OF_SOURCE
)

_OF_ZONE = ("zone", "signal")
_HOURS: Final = (1, 3, 6, 12, 24)
"""Horizons of the forecasts shown."""


class IntensityCollector(Collector):
    """Reads the state when scraped, so that staleness is exact.

    Scrapes run in a thread: a mapping of the state never changes once read.
    """

    def __init__(self, state: GridState, grid_clock: Clock) -> None:
        self._state = state
        self._clock = grid_clock

    def collect(self) -> Iterator[Metric]:
        """Yield CI, CIR, age and provenance of every zone that has a value."""
        latest = self._state.latest.values()
        masses = [value for value in latest if value.signal != "percentile"]
        ranked = [value for value in latest if value.signal == "percentile"]
        now = self._clock.now()
        yield _family(
            "cinquefoil_carbon_intensity_gco2e_per_kwh",
            "Carbon intensity (CI), gCO2e/kWh.",
            {value: value.sample.intensity_gco2e_per_kwh for value in masses},
        )
        yield _family(
            "cinquefoil_carbon_intensity_percentile",
            "Percentile of the marginal intensity, 0 (clean) to 100.",
            {value: value.sample.intensity_gco2e_per_kwh for value in ranked},
        )
        yield _family(
            "cinquefoil_carbon_intensity_ratio",
            "Carbon intensity ratio (CIR): intensity over its average.",
            {value: value.ratio for value in masses},
        )
        yield _family(
            "cinquefoil_carbon_staleness_seconds",
            "Age of the carbon intensity in grid time, seconds.",
            {value: value.age(now).total_seconds() for value in latest},
        )
        provenance = GaugeMetricFamily(
            "cinquefoil_carbon_provenance",
            "1: provenance and source of the carbon intensity in force.",
            labels=["zone", "source", "provenance"],
        )
        for value in latest:
            provenance.add_metric([value.zone, value.source, value.sample.provenance], 1)
        yield provenance
        yield _forecasts(self._state.forecasts, now)


def _family(name: str, help_text: str, values: dict[Intensity, float]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=_OF_ZONE)
    for value, number in values.items():
        family.add_metric([value.zone, value.signal], number)
    return family


def _forecasts(known: Mapping[str, Forecast], now: datetime) -> Metric:
    """Return the expected intensity in an hour, in three, and so on, within the forecast."""
    family = GaugeMetricFamily(
        "cinquefoil_carbon_forecast_gco2e_per_kwh",
        "Forecast of the carbon intensity so many hours ahead, as last computed, with the bounds "
        "of its 80 % interval.",
        labels=["zone", "hours_ahead", "bound"],
    )
    for zone, forecast in known.items():
        for hours in _HOURS:
            due = now + timedelta(hours=hours)
            for period in forecast.periods:
                if period.since <= due < period.since + period.length:
                    ahead = [zone, str(hours)]
                    family.add_metric([*ahead, "expected"], period.intensity_gco2e_per_kwh)
                    family.add_metric([*ahead, "low"], period.low_gco2e_per_kwh)
                    family.add_metric([*ahead, "high"], period.high_gco2e_per_kwh)
    return family

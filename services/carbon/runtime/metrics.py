"""The state, and what became of asking sources, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Counter, Gauge, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.carbon.core.model import Intensity
from services.carbon.runtime.grid_state import GridState
from services.kit.clock import Clock

_OF_SOURCE = ("zone", "source")
UP = Gauge(
    "cinquefoil_carbon_source_up", "Whether a live source answered when last asked.", _OF_SOURCE
)
POLLS = Counter(
    "cinquefoil_carbon_polls", "Questions to live sources, by outcome.", (*_OF_SOURCE, "outcome")
)
REFUSED = Counter(
    "cinquefoil_carbon_values_refused", "Values of live sources that cannot be.", _OF_SOURCE
)

_OF_ZONE = ("zone", "signal")


class IntensityCollector(Collector):
    """Reads the state when it is scraped, so that staleness is true at that moment.

    Scrapes come from the endpoint's own thread: the state's mapping never changes once read.
    """

    def __init__(self, state: GridState, grid_clock: Clock) -> None:
        self._state = state
        self._clock = grid_clock

    def collect(self) -> Iterator[Metric]:
        """Yield CI, CIR, age and provenance of every zone that has a value."""
        latest = self._state.latest.values()
        weighed = [value for value in latest if value.signal != "percentile"]
        ranked = [value for value in latest if value.signal == "percentile"]
        now = self._clock.now()
        yield _family(
            "cinquefoil_carbon_intensity_gco2e_per_kwh",
            "Carbon intensity (CI) now in force.",
            {value: value.sample.intensity_gco2e_per_kwh for value in weighed},
        )
        yield _family(
            "cinquefoil_carbon_intensity_percentile",
            "Rank of the marginal intensity now in force, 0 (clean) to 100.",
            {value: value.sample.intensity_gco2e_per_kwh for value in ranked},
        )
        yield _family(
            "cinquefoil_carbon_intensity_ratio",
            "Carbon intensity over its average (CIR).",
            {value: value.ratio for value in weighed},
        )
        yield _family(
            "cinquefoil_carbon_staleness_seconds",
            "Age of what is known, in grid time.",
            {value: value.age(now).total_seconds() for value in latest},
        )
        provenance = GaugeMetricFamily(
            "cinquefoil_carbon_provenance",
            "1: how the intensity now in force is known, and who says so.",
            labels=["zone", "source", "provenance"],
        )
        for value in latest:
            provenance.add_metric([value.zone, value.source, value.sample.provenance], 1)
        yield provenance


def _family(name: str, text: str, values: dict[Intensity, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=_OF_ZONE)
    for value, number in values.items():
        family.add_metric([value.zone, value.signal], number)
    return family

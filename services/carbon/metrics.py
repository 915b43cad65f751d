"""The board as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.carbon.board import Board
from services.kit.clock import Clock


class IntensityCollector(Collector):
    """Reads the board when it is scraped, so that staleness is true at that moment.

    Scrapes come from the endpoint's own thread: the board's mapping never changes once read.
    """

    def __init__(self, board: Board, grid_clock: Clock) -> None:
        self._board = board
        self._clock = grid_clock

    def collect(self) -> Iterator[Metric]:
        """Yield CI, CIR and age of every zone that has a value."""
        intensity = GaugeMetricFamily(
            "cinquefoil_carbon_intensity_gco2e_per_kwh",
            "Carbon intensity (CI) now in force.",
            labels=["zone", "signal"],
        )
        ratio = GaugeMetricFamily(
            "cinquefoil_carbon_intensity_ratio",
            "Carbon intensity over its average (CIR).",
            labels=["zone", "signal"],
        )
        staleness = GaugeMetricFamily(
            "cinquefoil_carbon_staleness_seconds",
            "Age of the intensity, in grid time.",
            labels=["zone", "signal"],
        )
        now = self._clock.now()
        for zone, value in self._board.latest.items():
            labels = [zone, value.signal]
            intensity.add_metric(labels, value.sample.intensity_gco2e_per_kwh)
            ratio.add_metric(labels, value.ratio)
            staleness.add_metric(labels, (now - value.sample.since).total_seconds())
        yield from (intensity, ratio, staleness)

"""The clock loop's metrics, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.gpuagent.clock_loop.core.decide import Move
from services.gpuagent.clock_loop.core.governor import Governor


class ClockCollector(Collector):
    """Clocks, decisions and slack. Args: governors, by GPU."""

    def __init__(self, governors: Mapping[str, Governor]) -> None:
        self._governors = governors

    def collect(self) -> Iterable[Metric]:
        """Yield the figures as they are now."""
        clock = GaugeMetricFamily(
            "cinquefoil_gpu_clock_hertz",
            "SM clock that the clock loop requests, hertz.",
            labels=["gpu_uuid"],
        )
        decisions = CounterMetricFamily(
            "cinquefoil_clock_decisions",
            "Decisions of the clock loop.",
            labels=["gpu_uuid", "decision"],
        )
        slack = GaugeMetricFamily(
            "cinquefoil_model_slack_ratio",
            "Share of the latency objective that is left, as the clock loop sees it.",
            labels=["gpu_uuid", "model"],
        )
        for uuid, governor in self._governors.items():
            clock.add_metric([uuid], governor.clock_mhz * 1e6)
            for move in Move:
                decisions.add_metric([uuid, move.value], governor.moves[move])
            for model, left in governor.slack.items():
                slack.add_metric([uuid, model], left)
        yield from (clock, decisions, slack)

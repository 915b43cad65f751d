"""Metrics of steered clocks, read at each scrape."""

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.gpuagent.steering.loop import ClockSteering


class SteeringCollector(Collector):
    """Clocks that are lowered for servers that others run, and the slack of their objectives.

    Args:
        steering: The loop; None: nothing is steered.
    """

    def __init__(self, steering: ClockSteering | None) -> None:
        self._steering = steering

    def collect(self) -> Iterable[Metric]:
        """Yield the values as they are now."""
        clocks = GaugeMetricFamily(
            "cinquefoil_steered_clock_hertz",
            "SM clock at which a GPU is held for observed servers; 0: it is not lowered.",
            labels=("gpu_uuid",),
        )
        slack = GaugeMetricFamily(
            "cinquefoil_steered_slack_ratio",
            "Share of an observed server's objective that its latency leaves; below 0: it is late.",
            labels=("gpu_uuid", "objective"),
        )
        for uuid, gpu in dict(self._steering.gpus).items() if self._steering else ():
            if self._steering is not None:
                clocks.add_metric((uuid,), 1e6 * self._steering.clocks.in_force_mhz(uuid))
            for name, left in dict(gpu.slack).items():
                slack.add_metric((uuid, name), left)
        yield from (clocks, slack)

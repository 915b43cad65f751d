"""Metrics of plans in shadow: `cinquefoil observe --store FILE --metrics HOST:PORT`."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.cli.observe.shadow import Shadow


class AdviceCollector(Collector):
    """Sums over all days that are kept, and the newest day.

    Attributes:
        days: Days in shadow, oldest first.
    """

    def __init__(self) -> None:
        self.days: Sequence[Shadow] = ()

    def collect(self) -> Iterable[Metric]:
        """Yield the values as they are now."""
        known = [each for each in self.days if each.saved_j is not None]
        amounts = (
            (
                "cinquefoil_advised_metered_joules",
                "Energy of the GPUs of observed servers on days of which a saving is known.",
                sum(each.metered_j for each in known),
            ),
            (
                "cinquefoil_advised_saved_joules",
                "Energy that plans in shadow would have saved on these days.",
                sum(each.saved_j or 0.0 for each in known),
            ),
            (
                "cinquefoil_advised_saved_gco2e",
                "Emissions that plans in shadow would have saved on days of known intensity.",
                sum(each.saved_gco2e or 0.0 for each in known),
            ),
        )
        for name, text, value in amounts:
            yield GaugeMetricFamily(name, text, value=value)
        yield CounterMetricFamily(
            "cinquefoil_advised_days", "Days planned for in shadow.", value=len(self.days)
        )
        newest = GaugeMetricFamily(
            "cinquefoil_advised_last_day_saved_ratio",
            "Share of the energy that plans in shadow would have saved on the newest day.",
        )
        if known:
            newest.add_metric((), known[-1].saved_share or 0.0)
        yield newest

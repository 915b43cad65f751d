"""The batch service's metrics."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cinquefoil.batch.v1.records import Batch


class BatchCollector(Collector):
    """Reads the newest state when scraped.

    Args:
        batches: Returns the batches that have not ended, as last looked at.
        in_flight: Returns the lines by model that are with the router.
    """

    def __init__(
        self, batches: Callable[[], list[Batch]], in_flight: Callable[[], Mapping[str, int]]
    ) -> None:
        self._batches, self._in_flight = batches, in_flight

    def collect(self) -> Iterator[Metric]:
        """Yield open batches and waiting lines by model, and lines in flight."""
        opened = GaugeMetricFamily(
            "cinquefoil_batch_open", "Batches that have not ended.", labels=["model"]
        )
        waiting = GaugeMetricFamily(
            "cinquefoil_batch_waiting_lines", "Lines without a result.", labels=["model"]
        )
        sent = GaugeMetricFamily(
            "cinquefoil_batch_in_flight", "Lines that are with the router.", labels=["model"]
        )
        counts: dict[str, list[int]] = {}
        for batch in self._batches():
            count = counts.setdefault(batch.model, [0, 0])
            count[0] += 1
            count[1] += batch.lines - batch.completed - batch.failed
        for model, (number, lines) in sorted(counts.items()):
            opened.add_metric([model], number)
            waiting.add_metric([model], lines)
        for model, number in sorted(self._in_flight().items()):
            sent.add_metric([model], number)
        yield from (opened, waiting, sent)

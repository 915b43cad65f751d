"""The predictor's metrics."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from services.predictor.core.cache.semantic_cache import SemanticCache
from services.predictor.core.prediction_stats import PredictionStats


class PredictorCollector(Collector):
    """Reads the statistics when scraped. The sources "exact" and "semantic" are cache hits.

    Args:
        cache: The prompt cache.
        stats: Statistics of the predictions.
    """

    def __init__(self, cache: SemanticCache, stats: PredictionStats) -> None:
        self._cache = cache
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Yield predictions by model and source, and the size of the cache by model."""
        seconds = SummaryMetricFamily(
            "cinquefoil_predictor_predictions_seconds",
            "Duration of length predictions, by source.",
            labels=["model", "source"],
        )
        judged = CounterMetricFamily(
            "cinquefoil_predictor_judged",
            "Predictions whose true length is known, by whether the length class was right.",
            labels=["model", "source", "right"],
        )
        entries = GaugeMetricFamily(
            "cinquefoil_predictor_cache_entries", "Prompts in the cache.", labels=["model"]
        )
        size = GaugeMetricFamily(
            "cinquefoil_predictor_cache_bytes", "Memory of the cached prompts.", labels=["model"]
        )
        for model, index in sorted(self._cache.of.items()):
            entries.add_metric([model], len(index))
            size.add_metric([model], index.size_bytes)
            for source, stats in self._stats.by_source(model):
                seconds.add_metric([model, source], stats.predictions, stats.total_s)
                judged.add_metric([model, source, "true"], stats.right)
                judged.add_metric([model, source, "false"], stats.judged - stats.right)
        yield from (seconds, judged, entries, size)

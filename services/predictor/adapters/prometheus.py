"""How well lengths are foretold: for GetStatistics, and as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from services.predictor.core.cache.semantic_cache import SemanticCache
from services.predictor.core.length_model import Knowledge
from services.predictor.core.prediction import Source
from services.predictor.core.prediction_stats import Count, Tally


class Figures:
    """Reads what the parts know; scrapes do so from the endpoint's own thread."""

    def __init__(self, cache: SemanticCache, knowledge: Knowledge, tally: Tally) -> None:
        self.models = tuple(sorted(cache.models))
        self._knowledge = knowledge
        self._tally = tally
        self.cache_entries = cache.entries
        self.cache_bytes = cache.size_bytes
        self.observed = tally.answers

    def __contains__(self, model: str) -> bool:
        return model in self.models

    def counts(self, model: str) -> tuple[tuple[Source, Count], ...]:
        """Return what each source foretold of a model."""
        return tuple(sorted(self._tally.counts(model)))

    def edges_tokens(self, model: str) -> tuple[float, ...]:
        """Return the upper edges of a model's classes 0..3, tokens."""
        return self._knowledge.edges_tokens(model)


class PredictorCollector(Collector):
    """The figures, when they are scraped. The sources "exact" and "semantic" are cache hits."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield counts by model and source, and the cache's size by model."""
        seconds = SummaryMetricFamily(
            "cinquefoil_predictor_predictions_seconds",
            "Lengths foretold, and the time they took, by source.",
            labels=["model", "source"],
        )
        judged = CounterMetricFamily(
            "cinquefoil_predictor_judged",
            "Foretold lengths whose true length is known, by whether the class was right.",
            labels=["model", "source", "right"],
        )
        entries = GaugeMetricFamily(
            "cinquefoil_predictor_cache_entries", "Prompts remembered.", labels=["model"]
        )
        size = GaugeMetricFamily(
            "cinquefoil_predictor_cache_bytes", "Memory they take.", labels=["model"]
        )
        for model in self._figures.models:
            entries.add_metric([model], self._figures.cache_entries(model))
            size.add_metric([model], self._figures.cache_bytes(model))
            for source, count in self._figures.counts(model):
                seconds.add_metric([model, source], count.predictions, count.total_s)
                judged.add_metric([model, source, "true"], count.right)
                judged.add_metric([model, source, "false"], count.judged - count.right)
        yield from (seconds, judged, entries, size)

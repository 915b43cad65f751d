"""Prometheus's metrics as OpenTelemetry's. Imported only if metrics are exported.

There is one list of metrics, that of the registry: a collector gets what `/metrics` shows, under
the same names, so that the dashboards fit both. Only `gen_ai_*` have OpenTelemetry's own names.
Source: OpenTelemetry specification, "Prometheus and OpenMetrics Compatibility".
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

_SCOPE: Final = InstrumentationScope("cinquefoil")
_UNITS: Final = {
    "seconds": "s",
    "joules": "J",
    "watts": "W",
    "bytes": "By",
    "hertz": "Hz",
    "ratio": "1",
}
"""Units of UCUM by the end of a metric's name."""

_Times = tuple[int, int]
"""Start of the counters, and now, ns since 1970."""


def reader(
    registry: CollectorRegistry, exporter: MetricExporter, resource: Resource
) -> PeriodicExportingMetricReader:
    """Return a reader that exports a registry from a thread of its own until its shutdown."""
    started_ns = time.time_ns()

    def read(*_: Any, **__: Any) -> MetricsData:
        return converted(registry.collect(), resource, (started_ns, time.time_ns()))

    made = PeriodicExportingMetricReader(exporter)
    made._set_collect_callback(read)  # noqa: SLF001 - what its MeterProvider calls
    return made


def converted(families: Iterable[Family], resource: Resource, times: _Times) -> MetricsData:
    """Return families of metrics as OpenTelemetry has them.

    Args:
        families: Metrics of a registry.
        resource: What exports them.
        times: When the counters started, and now, ns since 1970.
    """
    metrics = [metric for family in families for metric in _metrics(family, times)]
    scope = ScopeMetrics(_SCOPE, metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource, [scope], schema_url="")])


def _metrics(family: Family, times: _Times) -> Iterator[Metric]:
    if family.type == "histogram":
        points = list(_histograms(family.samples, times))
        found: Sum | Gauge | Histogram = Histogram(points, AggregationTemporality.CUMULATIVE)
        yield _named(family, family.name, found)
        return
    by_name: defaultdict[str, list[NumberDataPoint]] = defaultdict(list)
    for sample in family.samples:
        point = NumberDataPoint(_attributes(sample.labels), *times, float(sample.value))
        by_name[sample.name].append(point)
    for name, numbers in by_name.items():
        counted = family.type == "counter"
        found = (
            Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
            if counted
            else Gauge(numbers)
        )
        yield _named(family, name, found)


def _named(family: Family, name: str, data: Sum | Gauge | Histogram) -> Metric:
    unit = next((_UNITS[word] for word in reversed(family.name.split("_")) if word in _UNITS), "")
    return Metric(_own(name.removesuffix("_seconds")) or name, family.documentation, unit, data)


def _own(name: str) -> str:
    """Return a `gen_ai_*` name as OpenTelemetry writes it, or ""."""
    if not name.startswith("gen_ai_"):
        return ""
    server = "gen_ai_server_"
    if name.startswith(server):
        rest = name.removeprefix(server).replace("request_duration", "request.duration")
        return f"gen_ai.server.{rest}"
    return "gen_ai." + name.removeprefix("gen_ai_").replace("_", ".")


def _attributes(labels: Mapping[str, str]) -> dict[str, str]:
    return {_own(name) or name: value for name, value in labels.items()}


def _histograms(samples: Iterable[Sample], times: _Times) -> Iterator[HistogramDataPoint]:
    """Yield a point for each set of labels: Prometheus counts buckets with all below them."""
    by_labels: defaultdict[tuple[tuple[str, str], ...], list[Sample]] = defaultdict(list)
    for sample in samples:
        own = tuple(each for each in sorted(sample.labels.items()) if each[0] != "le")
        by_labels[own].append(sample)
    for labels, group in by_labels.items():
        buckets = [sample for sample in group if "le" in sample.labels]
        counts = [0, *(int(sample.value) for sample in buckets)]
        yield HistogramDataPoint(
            attributes=_attributes(dict(labels)),
            start_time_unix_nano=times[0],
            time_unix_nano=times[1],
            count=counts[-1],
            sum=sum(each.value for each in group if each.name.endswith("_sum")),
            bucket_counts=[upper - lower for lower, upper in pairwise(counts)],
            explicit_bounds=[float(sample.labels["le"]) for sample in buckets[:-1]],
            min=None,  # type: ignore[arg-type]  # not known: the encoder leaves it out
            max=None,  # type: ignore[arg-type]  # the same
            exemplars=[
                _exemplar(sample.exemplar, times[1]) for sample in buckets if sample.exemplar
            ],
        )


def _exemplar(found: Any, now_ns: int) -> Exemplar:
    return Exemplar(
        {},
        found.value,
        now_ns,
        span_id=int(found.labels["span_id"], 16),
        trace_id=int(found.labels["trace_id"], 16),
    )

"""A registry's metrics as OpenTelemetry's."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics.export import Gauge as OtelGauge
from opentelemetry.sdk.metrics.export import Histogram as OtelHistogram
from opentelemetry.sdk.metrics.export import Metric, Sum
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import HistogramMetricFamily

from services.kit.telemetry.otel_metrics import converted
from tests.support.examples import examples


def exported(*families: Any) -> dict[str, Metric]:
    """Return what a collector gets of families of metrics, by name."""
    data = converted(families, Resource({}), (1, 2))
    return {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}


def registered(registry: CollectorRegistry) -> dict[str, Metric]:
    return exported(*registry.collect())


def test_counters_and_gauges_have_the_names_and_labels_of_a_scrape() -> None:
    """One dashboard fits both; the unit is UCUM's."""
    registry = CollectorRegistry()
    Counter("energy_joules", "Energy.", ["gpu"], registry=registry).labels("a").inc(3)
    Gauge("power_watts", "Power.", registry=registry).set(7)
    Info("build", "Version.", registry=registry).info({"version": "1"})

    found = registered(registry)

    energy, power, build = (
        found[name] for name in ("energy_joules_total", "power_watts", "build_info")
    )
    assert isinstance(energy.data, Sum)
    assert energy.data.is_monotonic
    assert (energy.unit, power.unit) == ("J", "W")
    assert isinstance(power.data, OtelGauge)
    assert [(p.attributes, p.value) for p in energy.data.data_points] == [({"gpu": "a"}, 3)]
    assert [p.value for p in power.data.data_points] == [7]
    assert [p.attributes for p in build.data.data_points] == [{"version": "1"}]


@examples(0.3)
@given(st.lists(st.floats(0, 20), max_size=20))
def test_buckets_of_a_histogram_count_each_value_once(values: list[float]) -> None:
    """Prometheus's buckets contain those below them, OpenTelemetry's do not."""
    registry = CollectorRegistry()
    histogram = Histogram("took_seconds", "Time.", registry=registry, buckets=(1, 5))
    for value in values:
        histogram.observe(value)

    data = registered(registry)["took_seconds"].data

    assert isinstance(data, OtelHistogram)
    (point,) = data.data_points
    low = sum(value <= 1 for value in values)
    middle = sum(1 < value <= 5 for value in values)
    assert point.bucket_counts == [low, middle, len(values) - low - middle]
    assert point.count == len(values)
    assert point.explicit_bounds == [1, 5]
    assert point.sum == sum(values)


def test_metrics_of_language_models_have_the_names_of_the_convention() -> None:
    """OpenTelemetry's own, of which Prometheus's are a translation."""
    labels = ["gen_ai_operation_name", "gen_ai_request_model"]
    families = []
    for name in ("request_duration", "time_to_first_token", "time_per_output_token"):
        family = HistogramMetricFamily(f"gen_ai_server_{name}_seconds", "Time.", labels=labels)
        family.add_metric(["chat", "m"], [("1.0", 1), ("+Inf", 1)], 0.5)
        families.append(family)

    found = exported(*families)

    assert set(found) == {
        "gen_ai.server.request.duration",
        "gen_ai.server.time_to_first_token",
        "gen_ai.server.time_per_output_token",
    }
    for metric in found.values():
        assert metric.unit == "s"
        (point,) = metric.data.data_points
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
        assert point.attributes == attributes

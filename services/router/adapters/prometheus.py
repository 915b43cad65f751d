"""The router's accounts as Prometheus metrics, made at each scrape.

The scrape runs in a thread and takes copies: every value is one that was true, and a
histogram's count is the sum of its buckets.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as PrometheusExemplar

from services.kit.clock import Clock
from services.router.core.accounting.account import Account
from services.router.core.accounting.counters import BOUNDS_S, Exemplar, Histogram, VariantStats
from services.router.core.dispatch.overload import Overload

Accounts = Mapping[str, Account]
"""By model."""

_BOUNDS = (*(str(bound_s) for bound_s in BOUNDS_S), "+Inf")

_TEXT_LABELS = (
    "gen_ai_operation_name",
    "gen_ai_provider_name",
    "gen_ai_request_model",
    "gen_ai_response_model",
)

_METRICS: Mapping[tuple[Callable[..., Any], tuple[str, ...]], Mapping[str, str]] = {
    (GaugeMetricFamily, ("model",)): {
        "cinquefoil_pending_requests": "Requests that wait for an instance or for its answer.",
        "cinquefoil_slo_latency_seconds": "SLO latency threshold, seconds.",
        "cinquefoil_slo_objective_ratio": "Share of requests that must be good.",
        "cinquefoil_under_pressure": "1 while the model is overloaded: requests wait for more than"
        " half of the objective, and cheaper variants take more.",
    },
    (CounterMetricFamily, ("model",)): {
        "cinquefoil_items": "Items in the answered requests.",
        "cinquefoil_batches": "Batches that answered requests ran in.",
        "cinquefoil_request_retries": "Requests given to one more worker.",
        "cinquefoil_unclaimed_energy_joules": "Active energy of work that failed, or whose caller"
        " had gone by its end.",
        "cinquefoil_pressure_seconds": "Time overloaded.",
        "cinquefoil_overload_refusals": "Requests refused, or dropped from the queue, for lack of"
        " capacity.",
        "cinquefoil_waiting_seconds": "Time that answered requests which can wait have waited.",
        "cinquefoil_waiting_output_tokens": "Tokens generated for requests that can wait.",
        "cinquefoil_waiting_energy_joules": "Active energy attributed to requests that can wait.",
        "cinquefoil_waiting_marginal_energy_joules": "Energy that requests that can wait have"
        " added.",
        "cinquefoil_waiting_carbon_gco2e": "Carbon of the active energy of requests that can wait,"
        " gCO2e.",
    },
    (CounterMetricFamily, ("model", "status")): {
        "cinquefoil_requests": "Inference requests that ended, by status.",
        "cinquefoil_waiting_requests": "Requests that can wait that ended, by status; no other"
        " metric counts them.",
    },
    (CounterMetricFamily, ("model", "source")): {
        "cinquefoil_length_predictions": "Predictions of answers' lengths that came while the"
        " request was open, by source.",
    },
    (CounterMetricFamily, ("model", "outcome")): {
        "cinquefoil_slo_requests": "Requests that count for the objective: good ones were answered"
        " in time.",
    },
    (GaugeMetricFamily, ("model", "window")): {
        "cinquefoil_slo_attainment_ratio": "Share of good requests over the window; 1 without"
        " requests.",
        "cinquefoil_slo_burn_rate": "Rate at which the window used the error budget; 1: as the"
        " objective allows.",
    },
    (GaugeMetricFamily, ("model", "variant")): {
        "cinquefoil_share_wanted_ratio": "Share of the model's requests that the plan gives the"
        " variant.",
        "cinquefoil_share_served_ratio": "Share of the model's answers that the variant gave, over"
        " the shortest window.",
    },
    (CounterMetricFamily, ("model", "variant")): {
        "cinquefoil_request_energy_joules": "Active energy of the answered requests.",
        "cinquefoil_request_idle_energy_joules": "Idle energy of slices, attributed to the answered"
        " requests.",
        "cinquefoil_request_carbon_gco2e": "Carbon of the active energy, where the intensity was"
        " known, gCO2e.",
        "cinquefoil_request_carbon_total_gco2e": "Carbon of active and idle energy, where the"
        " intensity was known, gCO2e.",
        "cinquefoil_input_tokens": "Tokens of the answered prompts.",
        "cinquefoil_cached_input_tokens": "Of the prompts' tokens, those that servers had cached.",
        "cinquefoil_output_tokens": "Tokens generated for the answers.",
    },
    (HistogramMetricFamily, ("model", "variant")): {
        "cinquefoil_request_duration_seconds": "Time from a request's arrival to its answer.",
        "cinquefoil_queue_duration_seconds": "Waiting time of answered requests, in the router and"
        " in the worker.",
        "cinquefoil_compute_duration_seconds": "Execution time of the request's batch.",
    },
    # In the manner of the names below; OpenTelemetry has none for energy.
    (CounterMetricFamily, _TEXT_LABELS): {
        "gen_ai_server_active_energy_joules": "Active energy of the answered texts.",
        "gen_ai_server_total_energy_joules": "Active energy of the answered texts, and their share"
        " of the idle energy.",
        "gen_ai_server_output_tokens": "Tokens generated for the answers.",
    },
    # OpenTelemetry, "Semantic conventions for generative AI metrics": gen_ai.server.*. Completions
    # and chats are counted alike, as text_completion.
    (HistogramMetricFamily, _TEXT_LABELS): {
        "gen_ai_server_request_duration_seconds": "Time from a request's arrival to the end of its"
        " text.",
        "gen_ai_server_time_to_first_token_seconds": "Time from a request's arrival to its first"
        " token.",
        "gen_ai_server_time_per_output_token_seconds": "Mean time from one token of an answer to"
        " the next.",
    },
}
"""HELP by name of the metric, by family and labels."""


def collectors_registry(*collectors: Collector) -> CollectorRegistry:
    """Return the registry that one router exposes: these collectors, and the process's metrics."""
    found = CollectorRegistry(auto_describe=True)
    for collector in (*collectors, REGISTRY):
        found.register(collector)
    return found


class RouterCollector(Collector):
    """Reads the accounts.

    Args:
        accounts: Every model's; models may join.
        clock: The clock of the accounts.
        overloads: Returns each model's overload; called from another thread.
    """

    def __init__(
        self, accounts: Accounts, clock: Clock, overloads: Callable[[], dict[str, Overload]]
    ) -> None:
        self._accounts = accounts
        self._clock = clock
        self._overloads = overloads

    def collect(self) -> Iterable[Metric]:
        """Return every metric of every model."""
        families = {
            name: family(name, about, labels=labels)
            for (family, labels), metrics in _METRICS.items()
            for name, about in metrics.items()
        }
        now_s = self._clock.monotonic()
        for model, account in list(self._accounts.items()):
            for name, labels, value in _of_model(account, now_s):
                families[name].add_metric([model, *labels], value)
            for variant, stats in list(account.stats.variants.items()):
                for name, count in _of_variant(stats):
                    families[name].add_metric(_labels(name, model, variant), count)
                for name, histogram in _histograms(stats):
                    _add(families[name], _labels(name, model, variant), histogram)
        for model, overload in self._overloads().items():
            families["cinquefoil_under_pressure"].add_metric([model], overload.active)
            families["cinquefoil_pressure_seconds"].add_metric([model], overload.total_s(now_s))
            families["cinquefoil_overload_refusals"].add_metric([model], overload.refused)
        return families.values()


def _of_model(account: Account, now_s: float) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield names of metrics, their labels beside the model's, and values."""
    routes, stats = account.routes, account.stats
    yield "cinquefoil_pending_requests", (), stats.pending
    yield "cinquefoil_items", (), stats.items
    yield "cinquefoil_batches", (), stats.executions
    yield "cinquefoil_request_retries", (), stats.retried
    yield "cinquefoil_unclaimed_energy_joules", (), stats.unclaimed_j
    yield "cinquefoil_slo_latency_seconds", (), routes.slo_latency_s
    yield "cinquefoil_slo_objective_ratio", (), routes.slo_percentile / 100
    for status, count in {"OK": stats.total.answered, **stats.statuses}.items():
        yield "cinquefoil_requests", (status,), count
    waiting = account.waiting
    if waiting.answered or waiting.statuses:
        for status, count in {"OK": waiting.answered, **waiting.statuses}.items():
            yield "cinquefoil_waiting_requests", (status,), count
        yield "cinquefoil_waiting_seconds", (), waiting.held_s
        yield "cinquefoil_waiting_output_tokens", (), waiting.output_tokens
        yield "cinquefoil_waiting_energy_joules", (), waiting.energy_j
        yield "cinquefoil_waiting_marginal_energy_joules", (), waiting.marginal_j
        yield "cinquefoil_waiting_carbon_gco2e", (), waiting.carbon_gco2e
    for source, durations in list(stats.predictions.items()):
        yield "cinquefoil_length_predictions", (source,), durations.count
    for outcome, count in zip(("good", "bad"), stats.good_and_bad, strict=True):
        yield "cinquefoil_slo_requests", (outcome,), count
    for level in stats.service_levels(now_s, routes.slo_percentile):
        window = (_duration(level.window_s),)
        yield "cinquefoil_slo_attainment_ratio", window, level.attainment
        yield "cinquefoil_slo_burn_rate", window, level.burn_rate
    shares: dict[str, float] = {}
    for instance in routes.instances:
        shares[instance.variant] = shares.get(instance.variant, 0.0) + instance.share
    answered = stats.served(now_s)
    for variant in shares.keys() | answered.keys():
        yield "cinquefoil_share_wanted_ratio", (variant,), shares.get(variant, 0.0)
        yield "cinquefoil_share_served_ratio", (variant,), answered.get(variant, 0.0)


def _of_variant(stats: VariantStats) -> Iterator[tuple[str, float]]:
    yield "cinquefoil_request_energy_joules", stats.energy_j
    yield "cinquefoil_request_idle_energy_joules", stats.idle_energy_j
    yield "cinquefoil_request_carbon_gco2e", stats.carbon_gco2e
    yield "cinquefoil_request_carbon_total_gco2e", stats.carbon_total_gco2e
    if stats.tokens.input_tokens:
        yield "cinquefoil_input_tokens", stats.tokens.input_tokens
        yield "cinquefoil_cached_input_tokens", stats.tokens.cached_tokens
        yield "cinquefoil_output_tokens", stats.tokens.output_tokens
        yield "gen_ai_server_active_energy_joules", stats.energy_j
        yield "gen_ai_server_total_energy_joules", stats.energy_j + stats.idle_energy_j
        yield "gen_ai_server_output_tokens", stats.tokens.output_tokens


def _histograms(stats: VariantStats) -> Iterator[tuple[str, Histogram]]:
    yield "cinquefoil_request_duration_seconds", stats.latency
    yield "cinquefoil_queue_duration_seconds", stats.queue
    yield "cinquefoil_compute_duration_seconds", stats.compute
    if stats.tokens.input_tokens:
        yield "gen_ai_server_request_duration_seconds", stats.latency
        yield "gen_ai_server_time_to_first_token_seconds", stats.tokens.first
        yield "gen_ai_server_time_per_output_token_seconds", stats.tokens.between


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    counts, exemplars = accumulate(list(histogram.counts)), dict(histogram.exemplars)
    family.add_metric(
        labels,
        buckets=[
            (bound, count, _exemplar(exemplars[index])) if index in exemplars else (bound, count)
            for index, (bound, count) in enumerate(zip(_BOUNDS, counts, strict=True))
        ],
        sum_value=histogram.total_s,
    )


def _labels(name: str, model: str, variant: str) -> list[str]:
    fixed = ["text_completion", "cinquefoil"] if name.startswith("gen_ai_") else []
    return [*fixed, model, variant]


def _exemplar(traced: Exemplar) -> PrometheusExemplar:
    """Return it with the labels that OpenTelemetry gives to exemplars in Prometheus."""
    _, trace_id, span_id, _ = traced.traceparent.split("-")
    return PrometheusExemplar({"trace_id": trace_id, "span_id": span_id}, traced.duration_s)


def _duration(window_s: float) -> str:
    """Return a window the way Prometheus writes one: "5m", "1h"."""
    for unit, size_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if window_s >= size_s and window_s % size_s == 0:
            return f"{window_s / size_s:g}{unit}"
    return f"{window_s:g}s"

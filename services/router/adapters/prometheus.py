"""The router's accounts as Prometheus metrics, made at each scrape.

The scrape runs on a thread of its own and takes copies: every value is one that was true, and a
histogram's count is the sum of its buckets.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

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
from services.router.core.accounting.counters import (
    BOUNDS_S,
    Exemplar,
    Histogram,
    TokenStats,
    VariantStats,
)
from services.router.core.accounting.model_stats import ModelStats
from services.router.core.dispatch.overload import Overload

Accounts = Mapping[str, Account]
"""By model."""

_BOUNDS = (*(str(bound_s) for bound_s in BOUNDS_S), "+Inf")
_MODEL = ("model",)
_VARIANT = ("model", "variant")

_Family = type[CounterMetricFamily] | type[GaugeMetricFamily]

_OF_MODELS: tuple[tuple[_Family, str, str, Callable[[ModelStats], float]], ...] = (
    (
        GaugeMetricFamily,
        "pending_requests",
        "Requests that wait for an instance or for its answer.",
        lambda stats: stats.pending,
    ),
    (
        CounterMetricFamily,
        "request_retries",
        "Requests given to one more worker.",
        lambda stats: stats.retried,
    ),
    (
        CounterMetricFamily,
        "unclaimed_energy_joules",
        "Active energy of work that failed, or whose caller had gone by its end.",
        lambda stats: stats.unclaimed_j,
    ),
    (
        GaugeMetricFamily,
        "slo_latency_seconds",
        "SLO latency threshold, seconds.",
        lambda stats: stats.slo_latency_s,
    ),
    (
        GaugeMetricFamily,
        "slo_objective_ratio",
        "Share of requests that must be good.",
        lambda stats: stats.slo_percentile / 100,
    ),
)

_OF_VARIANTS: tuple[tuple[str, str, Callable[[VariantStats], float | None]], ...] = (
    (
        "request_energy_joules",
        "Active energy of the answered requests.",
        lambda variant: variant.energy_j,
    ),
    (
        "request_idle_energy_joules",
        "Idle energy of slices, attributed to the answered requests.",
        lambda variant: variant.idle_energy_j,
    ),
    (
        "request_carbon_gco2e",
        "Carbon of the active energy, where the intensity was known, gCO2e.",
        lambda variant: variant.carbon_gco2e,
    ),
    (
        "input_tokens",
        "Tokens of the answered prompts.",
        lambda variant: variant.tokens.input_tokens if variant.tokens else None,
    ),
    (
        "output_tokens",
        "Tokens generated for the answers.",
        lambda variant: variant.tokens.output_tokens if variant.tokens else None,
    ),
)

_HISTOGRAMS: tuple[tuple[str, str, Callable[[VariantStats], Histogram | None]], ...] = (
    ("request", "Time from a request's arrival to its answer.", lambda variant: variant.latency),
    (
        "queue",
        "Waiting time of answered requests, in the router and in the worker.",
        lambda variant: variant.queue,
    ),
    ("compute", "Execution time of the request's batch.", lambda variant: variant.compute),
)

_TEXT_HISTOGRAMS: tuple[tuple[str, str, Callable[[VariantStats, TokenStats], Histogram]], ...] = (
    (
        "request_duration",
        "Time from a request's arrival to the end of its text.",
        lambda variant, _: variant.latency,
    ),
    (
        "time_to_first_token",
        "Time from a request's arrival to its first token.",
        lambda _, tokens: tokens.first,
    ),
    (
        "time_per_output_token",
        "Mean time from one token of an answer to the next.",
        lambda _, tokens: tokens.between,
    ),
)
"""OpenTelemetry, "Semantic conventions for generative AI metrics": gen_ai.server.*. Completions
and chats are counted alike, as text_completion."""

_TOKEN_LABELS = (
    "gen_ai_operation_name",
    "gen_ai_provider_name",
    "gen_ai_request_model",
    "gen_ai_response_model",
)


def collectors_registry(*collectors: Collector) -> CollectorRegistry:
    """Return the registry that one router exposes: these collectors, and the process's metrics."""
    found = CollectorRegistry()
    for collector in (*collectors, _Process()):
        found.register(collector)
    return found


class _Process(Collector):
    """The metrics of the process, common to all routers in it."""

    def collect(self) -> Iterable[Metric]:
        """Return them all."""
        return REGISTRY.collect()

    def describe(self) -> Iterable[Metric]:
        """Return their names."""
        return self.collect()


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

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of every model."""
        accounts, now_s = list(self._accounts.items()), self._clock.monotonic()
        yield from _of_models(accounts)
        yield from _of_variants(accounts)
        yield from _requests(accounts)
        yield from _service_levels(accounts, now_s)
        yield from _shares(accounts, now_s)
        yield from _overload_metrics(self._overloads(), now_s)


_Listed = list[tuple[str, Account]]


def _of_models(accounts: _Listed) -> Iterator[Metric]:
    for family, name, about, value in _OF_MODELS:
        found = family(f"cinquefoil_{name}", about, labels=_MODEL)
        for model, account in accounts:
            found.add_metric([model], value(account.stats))
        yield found


def _of_variants(accounts: _Listed) -> Iterator[Metric]:
    variants = [
        ([model, variant], stats)
        for model, account in accounts
        for variant, stats in list(account.stats.variants.items())
    ]
    for name, about, value in _OF_VARIANTS:
        found = CounterMetricFamily(f"cinquefoil_{name}", about, labels=_VARIANT)
        for labels, stats in variants:
            count = value(stats)
            if count is not None:
                found.add_metric(labels, count)
        yield found
    for name, about, of in _HISTOGRAMS:
        family = HistogramMetricFamily(
            f"cinquefoil_{name}_duration_seconds", about, labels=_VARIANT
        )
        for labels, stats in variants:
            histogram = of(stats)
            if histogram is not None:
                _add(family, labels, histogram)
        yield family
    for name, about, of_text in _TEXT_HISTOGRAMS:
        family = HistogramMetricFamily(f"gen_ai_server_{name}_seconds", about, labels=_TOKEN_LABELS)
        for labels, stats in variants:
            if stats.tokens is not None:
                full = ["text_completion", "cinquefoil", *labels]
                _add(family, full, of_text(stats, stats.tokens))
        yield family


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


def _exemplar(traced: Exemplar) -> PrometheusExemplar:
    """Return it with the labels that OpenTelemetry gives to exemplars in Prometheus."""
    _, trace_id, span_id, _ = traced.traceparent.split("-")
    return PrometheusExemplar({"trace_id": trace_id, "span_id": span_id}, traced.duration_s)


def _requests(accounts: _Listed) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "cinquefoil_requests",
        "Inference requests that ended, by status.",
        labels=[*_MODEL, "status"],
    )
    predicted = CounterMetricFamily(
        "cinquefoil_length_predictions",
        "Predictions of answers' lengths that came while the request was open, by source.",
        labels=[*_MODEL, "source"],
    )
    judged = CounterMetricFamily(
        "cinquefoil_slo_requests",
        "Requests that count for the objective: good ones were answered in time.",
        labels=[*_MODEL, "outcome"],
    )
    for model, account in accounts:
        stats = account.stats
        for status, count in {"OK": stats.success.count, **stats.statuses}.items():
            ended.add_metric([model, status], count)
        for source, durations in list(stats.predictions.items()):
            predicted.add_metric([model, source], durations.count)
        for outcome, count in zip(("good", "bad"), stats.good_and_bad, strict=True):
            judged.add_metric([model, outcome], count)
    yield from (ended, predicted, judged)


def _service_levels(accounts: _Listed, now_s: float) -> Iterator[Metric]:
    kept = GaugeMetricFamily(
        "cinquefoil_slo_attainment_ratio",
        "Share of good requests over the window; 1 without requests.",
        labels=[*_MODEL, "window"],
    )
    burn = GaugeMetricFamily(
        "cinquefoil_slo_burn_rate",
        "Rate at which the window used the error budget; 1: as the objective allows.",
        labels=[*_MODEL, "window"],
    )
    for model, account in accounts:
        for level in account.stats.service_levels(now_s):
            window = _duration(level.window_s)
            kept.add_metric([model, window], level.attainment)
            burn.add_metric([model, window], level.burn_rate)
    yield from (kept, burn)


def _shares(accounts: _Listed, now_s: float) -> Iterator[Metric]:
    planned = GaugeMetricFamily(
        "cinquefoil_share_wanted_ratio",
        "Share of the model's requests that the plan gives the variant.",
        labels=_VARIANT,
    )
    served = GaugeMetricFamily(
        "cinquefoil_share_served_ratio",
        "Share of the model's answers that the variant gave, over the shortest window.",
        labels=_VARIANT,
    )
    for model, account in accounts:
        shares: dict[str, float] = {}
        for instance in account.routes.instances:
            shares[instance.variant] = shares.get(instance.variant, 0.0) + instance.share
        answered = account.stats.served(now_s)
        for variant in shares.keys() | answered.keys():
            planned.add_metric([model, variant], shares.get(variant, 0.0))
            served.add_metric([model, variant], answered.get(variant, 0.0))
    yield from (planned, served)


def _overload_metrics(overloads: dict[str, Overload], now_s: float) -> Iterator[Metric]:
    active = GaugeMetricFamily(
        "cinquefoil_under_pressure",
        "1 while the model is overloaded: requests wait for more than half of the objective, and"
        " cheaper variants take more.",
        labels=_MODEL,
    )
    lasted = CounterMetricFamily("cinquefoil_pressure_seconds", "Time overloaded.", labels=_MODEL)
    refused = CounterMetricFamily(
        "cinquefoil_overload_refusals",
        "Requests refused, or dropped from the queue, for lack of capacity.",
        labels=_MODEL,
    )
    for model, overload in overloads.items():
        active.add_metric([model], overload.active)
        lasted.add_metric([model], overload.total_s(now_s))
        refused.add_metric([model], overload.refused)
    yield from (active, lasted, refused)


def _duration(window_s: float) -> str:
    """Return a window the way Prometheus writes one: "5m", "1h"."""
    for unit, size_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if window_s >= size_s and window_s % size_s == 0:
            return f"{window_s / size_s:g}{unit}"
    return f"{window_s:g}s"

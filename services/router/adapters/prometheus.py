"""The router's accounts as Prometheus metrics, made when somebody scrapes and not before.

The scrape runs on a thread of its own and takes copies: every figure is one that was true, and a
histogram's count is the sum of its buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from services.kit.clock import Clock
from services.router.core.accounting.account import Account
from services.router.core.accounting.histogram import BOUNDS_S, Histogram
from services.router.core.accounting.variant_stats import VariantStats
from services.router.core.dispatch.overload import Overload

Accounts = dict[str, Account]
"""By model."""

_BOUNDS = (*(str(bound_s) for bound_s in BOUNDS_S), "+Inf")
_MODEL = ("model",)
_VARIANT = ("model", "variant")


def registry(*collectors: Collector) -> CollectorRegistry:
    """Return what one router exposes: these, and what every service has."""
    found = CollectorRegistry()
    for collector in (*collectors, _Process()):
        found.register(collector)
    return found


class _Process(Collector):
    """The metrics of the process, whichever router it belongs to."""

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
        clock: The one that the accounts are kept by.
        overloads: Returns each model's pressure; asked from another thread.
    """

    def __init__(
        self, accounts: Accounts, clock: Clock, overloads: Callable[[], dict[str, Overload]]
    ) -> None:
        self._accounts = accounts
        self._clock = clock
        self._overloads = overloads

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of every model."""
        accounts = list(self._accounts.items())
        yield from _requests(accounts)
        yield _prediction_metric(accounts)
        yield from _times(accounts)
        yield from _tokens(accounts)
        yield from _costs(accounts)
        yield from _objectives(accounts, self._clock.monotonic())
        yield from _shares(accounts, self._clock.monotonic())
        yield from _overload_metrics(self._overloads(), self._clock.monotonic())


_Listed = list[tuple[str, Account]]


def _requests(accounts: _Listed) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "cinquefoil_requests",
        "Inference requests that ended, by status.",
        labels=[*_MODEL, "status"],
    )
    pending = GaugeMetricFamily(
        "cinquefoil_pending_requests",
        "Requests that wait for an instance or for its answer.",
        labels=_MODEL,
    )
    retried = CounterMetricFamily(
        "cinquefoil_request_retries",
        "Times that a request was given to one more worker.",
        labels=_MODEL,
    )
    for model, account in accounts:
        stats = account.stats
        statuses = {"OK": stats.success.count, **stats.statuses}
        for status, count in statuses.items():
            ended.add_metric([model, status], count)
        pending.add_metric([model], stats.pending)
        retried.add_metric([model], stats.retried)
    yield from (ended, pending, retried)


def _prediction_metric(accounts: _Listed) -> Metric:
    found = CounterMetricFamily(
        "cinquefoil_length_predictions",
        "Predictions of answers' lengths that came while the request was open, by source.",
        labels=[*_MODEL, "source"],
    )
    for model, account in accounts:
        for source, span in list(account.stats.predictions.items()):
            found.add_metric([model, source], span.count)
    return found


def _times(accounts: _Listed) -> Iterator[Metric]:
    for name, about, of in (
        ("request", "From a request's arrival to its answer.", lambda v: v.latency),
        ("queue", "Of it: waiting, in the router and in the worker.", lambda v: v.queue),
        ("compute", "Of it: the request's batch executing.", lambda v: v.compute),
        (
            "first_token",
            "From a request's arrival to its first token.",
            lambda v: v.tokens and v.tokens.first,
        ),
        (
            "token",
            "From one token to the next, mean of an answer.",
            lambda v: v.tokens and v.tokens.between,
        ),
    ):
        yield _histogram(f"cinquefoil_{name}_duration_seconds", about, accounts, of)


def _histogram(
    name: str, about: str, accounts: _Listed, of: Callable[[VariantStats], Histogram | None]
) -> Metric:
    found = HistogramMetricFamily(name, about, labels=_VARIANT)
    for model, variant, stats in _variants(accounts):
        histogram = of(stats)
        if histogram is None:
            continue
        counts = accumulate(list(histogram.counts))
        found.add_metric(
            [model, variant],
            buckets=list(zip(_BOUNDS, counts, strict=True)),
            sum_value=histogram.total_s,
        )
    return found


def _tokens(accounts: _Listed) -> Iterator[Metric]:
    taken = CounterMetricFamily(
        "cinquefoil_input_tokens", "Tokens of the answered prompts.", labels=_VARIANT
    )
    given = CounterMetricFamily(
        "cinquefoil_output_tokens", "Tokens generated for the answers.", labels=_VARIANT
    )
    for model, variant, stats in _variants(accounts):
        if stats.tokens is not None:
            taken.add_metric([model, variant], stats.tokens.input_tokens)
            given.add_metric([model, variant], stats.tokens.output_tokens)
    yield from (taken, given)


def _costs(accounts: _Listed) -> Iterator[Metric]:
    energy = CounterMetricFamily(
        "cinquefoil_request_energy_joules", "Active energy of the answers.", labels=_VARIANT
    )
    idle = CounterMetricFamily(
        "cinquefoil_request_idle_energy_joules",
        "Energy of slices that waited for the answered requests.",
        labels=_VARIANT,
    )
    carbon = CounterMetricFamily(
        "cinquefoil_request_carbon_gco2e",
        "Carbon of the active energy, where the intensity was known.",
        labels=_VARIANT,
    )
    unclaimed = CounterMetricFamily(
        "cinquefoil_unclaimed_energy_joules",
        "Active energy of work that failed, or whose caller had gone by its end.",
        labels=_MODEL,
    )
    for model, variant, stats in _variants(accounts):
        energy.add_metric([model, variant], stats.energy_j)
        idle.add_metric([model, variant], stats.idle_energy_j)
        carbon.add_metric([model, variant], stats.carbon_gco2e)
    for model, account in accounts:
        unclaimed.add_metric([model], account.stats.unclaimed_j)
    yield from (energy, idle, carbon, unclaimed)


def _objectives(accounts: _Listed, now_s: float) -> Iterator[Metric]:
    judged = CounterMetricFamily(
        "cinquefoil_slo_requests",
        "Requests that count for the objective: good ones were answered in time.",
        labels=[*_MODEL, "outcome"],
    )
    latency = GaugeMetricFamily("cinquefoil_slo_latency_seconds", "What is in time.", labels=_MODEL)
    wanted = GaugeMetricFamily(
        "cinquefoil_slo_objective_ratio", "Share of requests that shall be good.", labels=_MODEL
    )
    kept = GaugeMetricFamily(
        "cinquefoil_slo_attainment_ratio",
        "Share that was good, over the window; 1 where there were no requests.",
        labels=[*_MODEL, "window"],
    )
    burn = GaugeMetricFamily(
        "cinquefoil_slo_burn_rate",
        "How fast the window used up the error budget; 1: just as the objective allows.",
        labels=[*_MODEL, "window"],
    )
    for model, account in accounts:
        stats = account.stats
        for outcome, count in zip(("good", "bad"), stats.good_and_bad, strict=True):
            judged.add_metric([model, outcome], count)
        latency.add_metric([model], stats.slo_latency_s)
        wanted.add_metric([model], stats.slo_percentile / 100)
        for level in stats.service_levels(now_s):
            window = _duration(level.window_s)
            kept.add_metric([model, window], level.attainment)
            burn.add_metric([model, window], level.burn_rate)
    yield from (judged, latency, wanted, kept, burn)


def _shares(accounts: _Listed, now_s: float) -> Iterator[Metric]:
    wanted = GaugeMetricFamily(
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
            wanted.add_metric([model, variant], shares.get(variant, 0.0))
            served.add_metric([model, variant], answered.get(variant, 0.0))
    yield from (wanted, served)


def _overload_metrics(overloads: dict[str, Overload], now_s: float) -> Iterator[Metric]:
    on = GaugeMetricFamily(
        "cinquefoil_under_pressure",
        "1 while requests wait for more than half of the objective: cheaper variants take more.",
        labels=_MODEL,
    )
    lasted = CounterMetricFamily(
        "cinquefoil_pressure_seconds", "Time under pressure.", labels=_MODEL
    )
    refused = CounterMetricFamily(
        "cinquefoil_overload_refusals",
        "Requests refused, or dropped from the queue, for want of capacity.",
        labels=_MODEL,
    )
    for model, overload in overloads.items():
        on.add_metric([model], overload.on)
        lasted.add_metric([model], overload.total_s(now_s))
        refused.add_metric([model], overload.refused)
    yield from (on, lasted, refused)


def _variants(accounts: _Listed) -> Iterator[tuple[str, str, VariantStats]]:
    for model, account in accounts:
        for variant, stats in list(account.stats.variants.items()):
            yield model, variant, stats


def _duration(window_s: float) -> str:
    """Return a window the way Prometheus writes one: "5m", "1h"."""
    for unit, size_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if window_s >= size_s and window_s % size_s == 0:
            return f"{window_s / size_s:g}{unit}"
    return f"{window_s:g}s"

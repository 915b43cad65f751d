"""The same counts under Triton's metric names, for dashboards and tools made for those.

Source: Triton Inference Server, docs/user_guide/metrics.md.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.router.adapters.prometheus import Accounts
from services.router.core.accounting.account import Account
from services.router.core.accounting.counters import BOUNDS_S, Durations
from services.router.core.accounting.model_stats import ModelStats
from services.router.core.model_registry import VERSION


def _us(durations: Durations) -> int:
    return int(durations.total_s * 1e6)


_Metrics = tuple[tuple[str, str, Callable[[ModelStats], float]], ...]

_METRICS: _Metrics = (
    ("request_success", "Requests answered.", lambda stats: stats.success.count),
    ("request_failure", "Requests that ended in an error.", lambda stats: stats.fail.count),
    ("count", "Items in the requests answered.", lambda stats: stats.items),
    ("exec_count", "Batches that ran.", lambda stats: stats.executions),
    ("pending_request_count", "Requests that wait.", lambda stats: stats.pending),
    ("request_duration_us", "Time from arrival to answer, us.", lambda stats: _us(stats.success)),
    ("queue_duration_us", "Waiting time, us.", lambda stats: _us(stats.queue)),
    ("compute_input_duration_us", "Part of compute_infer here: 0.", lambda _: 0),
    (
        "compute_infer_duration_us",
        "Execution time of the batch, us.",
        lambda stats: _us(stats.compute),
    ),
    ("compute_output_duration_us", "Part of compute_infer here: 0.", lambda _: 0),
)
_CACHE: _Metrics = (
    ("num_hits_per_model", "Lengths predicted from the cache.", lambda t: t.cache_hits.count),
    ("num_misses_per_model", "Lengths predicted otherwise.", lambda t: t.cache_misses.count),
    ("hit_duration_per_model", "Time of hits, us.", lambda t: _us(t.cache_hits)),
    ("miss_duration_per_model", "Time of misses, us.", lambda t: _us(t.cache_misses)),
)
"""The predictor's cache, of lengths; Triton's own holds whole answers."""

_NAMED = (("nv_inference_", _METRICS), ("nv_cache_", _CACHE))
_BOUNDS_MS = (*(f"{bound_s * 1e3:g}" for bound_s in BOUNDS_S), "+Inf")


class TritonCollector(Collector):
    """Reads the accounts.

    Args:
        accounts: Every model's, by model; models may join.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of every model.

        They are untyped: the library adds "_total" to the names of counters, Triton does not.
        """
        accounts = list(self._accounts.items())
        for prefix, metrics in _NAMED:
            for name, about, value in metrics:
                metric = Metric(f"{prefix}{name}", about, "untyped")
                for model, account in accounts:
                    labels = {"model": model, "version": VERSION}
                    metric.add_sample(metric.name, labels, value(account.stats))
                yield metric
        yield _first_response(accounts)


def _first_response(accounts: Iterable[tuple[str, Account]]) -> Metric:
    """Return times to the first token, of models that generate text."""
    found = HistogramMetricFamily(
        "nv_inference_first_response_histogram_ms",
        "Time from a request's arrival to its first token, ms.",
        labels=("model", "version"),
    )
    for model, account in accounts:
        variants = list(account.stats.variants.values())
        first = [variant.tokens.first for variant in variants if variant.tokens]
        if first:
            counts = accumulate(map(sum, zip(*(each.counts for each in first), strict=True)))
            buckets = list(zip(_BOUNDS_MS, counts, strict=True))
            total_ms = sum(each.total_s for each in first) * 1e3
            found.add_metric([model, VERSION], buckets, sum_value=total_ms)
    return found

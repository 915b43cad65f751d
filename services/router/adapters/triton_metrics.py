"""The same counts under Triton's metric names, for dashboards and tools made for those.

Source: Triton Inference Server, docs/user_guide/metrics.md.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.router.adapters.prometheus import Accounts
from services.router.core.accounting.account import Account
from services.router.core.accounting.counters import BOUNDS_S
from services.router.core.accounting.model_stats import ModelStats
from services.router.core.model_registry import VERSION

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
        found: dict[str, Metric] = {}
        for model, account in accounts:
            labels = {"model": model, "version": VERSION}
            for name, about, value in _read(account.stats):
                metric = found.setdefault(name, Metric(name, about, "untyped"))
                metric.add_sample(name, labels, value)
        yield from found.values()
        yield _first_response(accounts)


def _read(stats: ModelStats) -> Iterator[tuple[str, str, float]]:
    """Yield name, HELP and value of each metric of a model.

    The cache is the predictor's, of lengths; Triton's own holds whole answers.
    """
    total, hits, misses = stats.total, stats.cache_hits, stats.cache_misses
    yield "nv_inference_request_success", "Requests answered.", total.answered
    yield "nv_inference_request_failure", "Requests that ended in an error.", stats.fail.count
    yield "nv_inference_count", "Items in the requests answered.", stats.items
    yield "nv_inference_exec_count", "Batches that ran.", stats.executions
    yield "nv_inference_pending_request_count", "Requests that wait.", stats.pending
    for name, about, total_s in (
        ("request", "Time from arrival to answer, us.", total.latency.total_s),
        ("queue", "Waiting time, us.", total.queue.total_s),
        ("compute_input", "Part of compute_infer here: 0.", 0.0),
        ("compute_infer", "Execution time of the batch, us.", total.compute.total_s),
        ("compute_output", "Part of compute_infer here: 0.", 0.0),
    ):
        yield f"nv_inference_{name}_duration_us", about, _us(total_s)
    yield "nv_cache_num_hits_per_model", "Lengths predicted from the cache.", hits.count
    yield "nv_cache_num_misses_per_model", "Lengths predicted otherwise.", misses.count
    yield "nv_cache_hit_duration_per_model", "Time of hits, us.", _us(hits.total_s)
    yield "nv_cache_miss_duration_per_model", "Time of misses, us.", _us(misses.total_s)


def _us(time_s: float) -> int:
    return int(time_s * 1e6)


def _first_response(accounts: Iterable[tuple[str, Account]]) -> Metric:
    """Return times to the first token, of models that generate text."""
    found = HistogramMetricFamily(
        "nv_inference_first_response_histogram_ms",
        "Time from a request's arrival to its first token, ms.",
        labels=("model", "version"),
    )
    for model, account in accounts:
        tokens = account.stats.total.tokens
        if tokens.input_tokens:
            buckets = list(zip(_BOUNDS_MS, accumulate(tokens.first.counts), strict=True))
            found.add_metric([model, VERSION], buckets, sum_value=tokens.first.total_s * 1e3)
    return found

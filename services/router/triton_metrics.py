"""The same counts under Triton's names, for dashboards and tools that ask for those.

Source: Triton Inference Server, docs/user_guide/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from services.router.metrics import Accounts
from services.router.switchboard import VERSION
from services.router.tally import Span, Tally


def _us(span: Span) -> int:
    return int(span.total_s * 1e6)


_METRICS: tuple[tuple[str, str, Callable[[Tally], float]], ...] = (
    ("request_success", "Requests answered.", lambda tally: tally.success.count),
    ("request_failure", "Requests that ended in an error.", lambda tally: tally.fail.count),
    ("count", "Items in the requests answered.", lambda tally: tally.items),
    ("exec_count", "Batches that ran.", lambda tally: tally.executions),
    ("pending_request_count", "Requests that wait.", lambda tally: tally.pending),
    ("request_duration_us", "Time to an answer.", lambda tally: _us(tally.success)),
    ("queue_duration_us", "Of it: waiting.", lambda tally: _us(tally.queue)),
    ("compute_input_duration_us", "Part of compute_infer here: 0.", lambda _: 0),
    ("compute_infer_duration_us", "Of it: its batch executing.", lambda tally: _us(tally.compute)),
    ("compute_output_duration_us", "Part of compute_infer here: 0.", lambda _: 0),
)


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
        for name, about, value in _METRICS:
            metric = Metric(f"nv_inference_{name}", about, "untyped")
            for model, account in accounts:
                labels = {"model": model, "version": VERSION}
                metric.add_sample(metric.name, labels, value(account.tally))
            yield metric

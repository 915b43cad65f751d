"""Metrics of served calls: counted at once, converted to Prometheus metrics when scraped.

prometheus_client's counters take a lock and walk their buckets, which costs too much at thousands
of calls a second. These cost a bisection and two additions.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_NAMES = (*map(str, _BOUNDS_S), "+Inf")


class MethodCalls:
    """The calls of one method that have ended.

    Attributes:
        counts: Calls by duration, one per bucket, the unbounded one last.
        total_s: Sum of the durations, s.
        statuses: Calls by status word.
    """

    __slots__ = ("counts", "statuses", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * len(_NAMES)
        self.total_s = 0.0
        self.statuses: dict[str, int] = {}

    def end(self, status: str, duration_s: float) -> None:
        """Count a call."""
        self.counts[bisect_left(_BOUNDS_S, duration_s)] += 1
        self.total_s += duration_s
        self.statuses[status] = self.statuses.get(status, 0) + 1


class Calls(Collector):
    """The calls of this process, by method."""

    def __init__(self) -> None:
        self._methods: dict[str, MethodCalls] = {}

    def of(self, method: str) -> MethodCalls:
        """Return the counts of a method."""
        return self._methods.setdefault(method, MethodCalls())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; runs on the scrape's thread, so it copies before it reads."""
        seconds = HistogramMetricFamily(
            "cinquefoil_rpc_server_duration_seconds",
            "Duration of served calls, by method.",
            labels=["method"],
        )
        ended = CounterMetricFamily(
            "cinquefoil_rpc_server_calls",
            "Served calls, by method and status.",
            labels=["method", "status"],
        )
        for method, calls in tuple(self._methods.items()):
            total_s, counts = calls.total_s, tuple(accumulate(tuple(calls.counts)))
            buckets = list(zip(_NAMES, counts, strict=True))
            seconds.add_metric([method], buckets, total_s)
            for status, count in tuple(calls.statuses.items()):
                ended.add_metric([method, status], count)
        yield seconds
        yield ended


CALLS = Calls()
REGISTRY.register(CALLS)

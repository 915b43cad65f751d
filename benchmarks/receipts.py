"""Cost of counting a request and of its receipt, compared with the usual way to count.

python -m benchmarks.receipts [--json FILE]

`account` is the router's: counts, histograms, objective, parameters and trailers of one answer.
`prometheus_client` observes three histograms and increments three counters with labels looked up
in advance, without a receipt: what a service does that keeps its figures in the library.
"""

import time
from collections.abc import Callable
from itertools import cycle

from prometheus_client import CollectorRegistry, Counter, Histogram

from benchmarks.harness import Figures, main
from services.kit.clock import RealClock
from services.kit.request_cost import Cost
from services.router.adapters.prometheus import RouterCollector
from services.router.core.accounting.account import Account, Outcome
from services.router.core.model import Instance, ModelRoutes, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Result

_ROUNDS = 20
_REQUESTS = 5_000
_VARIANTS = 3
_INSTANCES = tuple(
    Instance(f"h:{n}", f"s{n}", "m", f"v{n % _VARIANTS}", 0.9, 0.125, 4, zone="z", pue=1.2)
    for n in range(8)
)
_ANSWERS = [
    (
        PendingRequest(
            Request(n, "m", b"", arrived_s=1.0, deadline_s=31.0), assigned_s=1.0 + n / 1e5
        ),
        Outcome(
            _INSTANCES[n % len(_INSTANCES)],
            Result(
                n,
                response=bytes(200),
                cost=Cost(3.6 + n, 0.5, "model", 1e-4 * n, 4e-3, 1 + n % 8),
            ),
            1.01 + n / 200,
        ),
    )
    for n in range(64)
]


def measure() -> list[Figures]:
    """Time both ways, in turns, and a scrape of the first."""
    account = Account(ModelRoutes("m", 0.1, 95.0, "shares", _INSTANCES), {"z": 300.0}.get)
    ways = {"account": _account(account), "prometheus_client": _library()}
    times_us: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_ROUNDS):
        for name, once in ways.items():
            times_us[name].append(_timed_us(once))
    collector = RouterCollector({"m": account}, RealClock(), dict)
    scrape_us = min(_timed_us(lambda: list(collector.collect()), 20) for _ in range(5))
    rows = [
        {"way": name, "least_us": min(found), "median_us": sorted(found)[len(found) // 2]}
        for name, found in times_us.items()
    ]
    note = f"A scrape of one model of {_VARIANTS} variants takes {scrape_us / 1e3:.1f} ms."
    return [Figures("Counting one answered request, CPU time", rows, note)]


def _timed_us(once: Callable[[], object], requests: int = _REQUESTS) -> float:
    started_s = time.thread_time()
    for _ in range(requests):
        once()
    return (time.thread_time() - started_s) / requests * 1e6


def _account(account: Account) -> Callable[[], object]:
    answers = cycle(_ANSWERS)

    def once() -> None:
        account.stats.arrivals += 1
        account.stats.accepted += 1
        account.answer(*next(answers))

    return once


def _library() -> Callable[[], object]:
    registry, answers = CollectorRegistry(), cycle(_ANSWERS)
    histograms = [Histogram(name, name, ["m"], registry=registry).labels("m") for name in "abc"]
    counters = [Counter(name, name, ["m"], registry=registry).labels("m") for name in "def"]

    def once() -> None:
        cost = next(answers)[1].result.cost
        if cost is not None:
            for histogram in histograms:
                histogram.observe(cost.queue_s)
            for counter in counters:
                counter.inc(cost.energy_j)

    return once


if __name__ == "__main__":
    main("receipts", measure)

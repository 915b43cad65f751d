"""Order of service: disciplines, each a sort key.

The smallest key goes first; equal keys in order of arrival. A key that changes while a request
waits (a predicted length that arrives late) takes effect with `RequestQueue.reorder`.
"""

from collections.abc import Callable, Mapping

from services.kit.config import Discipline
from services.router.core.pending_request import PendingRequest

SortKey = Callable[[PendingRequest], float]

DEFAULT_PRIORITY = 100
"""Rank of requests without a priority: others may be placed before or behind them."""


def by_arrival(pending: PendingRequest) -> float:
    """First come, first served."""
    return pending.order


def by_deadline(pending: PendingRequest) -> float:
    """Earliest deadline first."""
    return pending.request.deadline_s


def by_priority(pending: PendingRequest) -> float:
    """Lowest number first.

    Source: Triton, "Schedule Policy Extension": 1 is the highest priority, 0 the default one.
    """
    return pending.request.priority or DEFAULT_PRIORITY


def by_boosted_arrival(pending: PendingRequest) -> float:
    """Speculative shortest job first: the shorter the answer, the earlier it is taken to have come.

    Source: as `services.router.core.queue.boost`.
    """
    return pending.request.arrived_s - pending.boost_s


DISCIPLINES: Mapping[Discipline, SortKey] = {
    "fcfs": by_arrival,
    "edf": by_deadline,
    "priority": by_priority,
    "ssjf": by_boosted_arrival,
}

"""Who is served first: disciplines, each a sort key.

The smallest key goes first; equal keys in order of arrival. A key that changes while a request
waits (a predicted length that arrives late) takes effect with `Queue.reorder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.kit.config import Discipline
from services.router.core.model import Request

Key = Callable[[Request], float]

DEFAULT_PRIORITY = 100
"""Where requests stand that name no priority: others may place themselves before or behind."""


def by_arrival(request: Request) -> float:
    """First come, first served."""
    return request.order


def by_deadline(request: Request) -> float:
    """Earliest deadline first."""
    return request.deadline_s


def by_priority(request: Request) -> float:
    """Lowest number first.

    Source: Triton, "Schedule Policy Extension": 1 is the highest priority, 0 the default one.
    """
    return request.priority or DEFAULT_PRIORITY


def by_boosted_arrival(request: Request) -> float:
    """Speculative shortest job first: as if it had come earlier, the more so the shorter it is.

    Source: as `services.router.core.queue.boost`.
    """
    return request.arrived_s - request.boost_s


DISCIPLINES: Mapping[Discipline, Key] = {
    "fcfs": by_arrival,
    "edf": by_deadline,
    "priority": by_priority,
    "ssjf": by_boosted_arrival,
}

"""Which instance takes the next request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from services.router.domain import InstanceChoice
from services.router.lane import Lane

Choose = Callable[[Sequence[Lane]], Lane]
"""From lanes with a free credit (at least one), the one that takes the next request."""


def idle_longest(lanes: Sequence[Lane]) -> Lane:
    """Return the lane that has been idle longest; where none is idle, the least loaded.

    Source: CLOVER, section 4 ("a FIFO queue whose head goes to the instance idle longest"),
    extended to instances that hold more than one request: load is in flight over credits.
    """
    return min(lanes, key=lambda lane: (len(lane.in_flight) / lane.credits, lane.used_at))


def by_shares(lanes: Sequence[Lane]) -> Lane:
    """Return the next lane of smooth weighted round robin; the lanes' weights advance.

    With the same lanes free each time, n choices give each lane n x share to within one, evenly
    spread. Ties go to the first. Lanes without any share take turns.

    Source: nginx, ngx_http_upstream_round_robin.c (commit 52327e0, "smooth weighted round-robin").
    """
    if len(lanes) == 1:
        return lanes[0]
    total = 0.0
    best = lanes[0]
    for lane in lanes:
        lane.weight += lane.pull
        total += lane.pull
        if lane.weight > best.weight:
            best = lane
    best.weight -= total
    return best


CHOICES: Mapping[InstanceChoice, Choose] = {"idle_longest": idle_longest, "shares": by_shares}

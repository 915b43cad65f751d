"""Which instance takes the next request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from services.kit.config import InstanceChoice
from services.router.core.instance_state import Lane

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


def least_expected_completion(lanes: Sequence[Lane]) -> Lane:
    """Return the lane that would answer the next request first, as far as is known.

    Expected completion: (in flight + 1) x service time / parallelism, where the last two are what
    each request was seen to add. An idle lane of which nothing is known comes first, a busy one is
    taken to be as slow as the slowest; an idle lane that is passed over is believed to be a little
    faster each time, so that what was slow once is tried again.
    """
    unknown_s = max(lane.pace.unit_s for lane in lanes) or 1.0

    def expected_s(lane: Lane) -> tuple[float, int]:
        held = len(lane.in_flight)
        if not lane.pace.unit_s:
            return (held and (held + 1) * unknown_s, lane.used_at)
        return ((held + 1) * lane.pace.unit_s, lane.used_at)

    best = min(lanes, key=expected_s)
    for lane in lanes:
        if lane is not best and not lane.in_flight:
            lane.pace.doubt()
    return best


CHOICES: Mapping[InstanceChoice, Choose] = {
    "idle_longest": idle_longest,
    "shares": by_shares,
    "least_expected_completion": least_expected_completion,
}

"""One server, in virtual time: the least arrival less boost first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush


def served(
    arrivals: Sequence[float],
    services: Sequence[float],
    boost_s: Callable[[int], float],
    ended: Callable[[int, float], None] = lambda *_: None,
) -> list[float]:
    """Return times in the system, s.

    Args:
        arrivals: When each comes, s, ascending.
        services: What each takes, s.
        boost_s: Asked of each when it comes.
        ended: Told of each that had to wait, and for how long.
    """
    waiting: list[tuple[float, int]] = []
    times = [0.0] * len(arrivals)
    now_s, coming = 0.0, 0
    for _ in arrivals:
        if not waiting:
            now_s = max(now_s, arrivals[coming])
        while coming < len(arrivals) and arrivals[coming] <= now_s:
            heappush(waiting, (arrivals[coming] - boost_s(coming), coming))
            coming += 1
        index = heappop(waiting)[1]
        wait_s = now_s - arrivals[index]
        now_s += services[index]
        times[index] = now_s - arrivals[index]
        if wait_s > 0:
            ended(index, wait_s)
    return times

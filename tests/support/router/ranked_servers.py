"""One server, or several, in virtual time: the least arrival less boost first."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush


def served(
    arrivals: Sequence[float],
    services: Sequence[float],
    boost_s: Callable[[int], float],
    ended: Callable[[int, float], None] = lambda *_: None,
    slots: int = 1,
) -> list[float]:
    """Return times in the system, s.

    Args:
        arrivals: Arrival times, s, ascending.
        services: Service times, s.
        boost_s: Boost by index of the job, s; called when it arrives.
        ended: Called with the index of each job that had to wait, and its wait, s.
        slots: Servers.
    """
    waiting: list[tuple[float, int]] = []
    times = [0.0] * len(arrivals)
    free_s, coming = [0.0] * slots, 0
    for _ in arrivals:
        now_s = heappop(free_s)
        if not waiting:
            now_s = max(now_s, arrivals[coming])
        while coming < len(arrivals) and arrivals[coming] <= now_s:
            heappush(waiting, (arrivals[coming] - boost_s(coming), coming))
            coming += 1
        index = heappop(waiting)[1]
        wait_s = now_s - arrivals[index]
        heappush(free_s, now_s + services[index])
        times[index] = now_s + services[index] - arrivals[index]
        if wait_s > 0:
            ended(index, wait_s)
    return times

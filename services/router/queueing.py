"""Requests that wait, in the order of a discipline.

A discipline is a sort key that a request has from its arrival on: the smallest key is served
first. So a request that comes back from a dead worker regains its place by itself, and another
discipline (earliest deadline, priority, shortest job with a boost for age) is one more function.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from services.router.domain import Request

Discipline = Callable[[Request], float]


def first_come_first_served(request: Request) -> float:
    """Order of arrival."""
    return request.number


class Queue:
    """A priority queue whose requests may leave from anywhere.

    A request that leaves early stays in the heap, unmarked in `_waiting`, until it surfaces or
    until such entries are the majority: removing is O(1), and memory follows what waits.
    """

    def __init__(self, discipline: Discipline = first_come_first_served) -> None:
        self._key = discipline
        self._heap: list[tuple[float, int, Request]] = []
        self._waiting: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, request: Request) -> None:
        """Add a request, new or returned."""
        self._waiting.add(request.number)
        heapq.heappush(self._heap, (self._key(request), request.number, request))

    def pop(self) -> Request:
        """Take the first request.

        Raises:
            IndexError: Nothing waits.
        """
        while True:
            _, number, request = heapq.heappop(self._heap)
            if number in self._waiting:
                self._waiting.remove(number)
                return request

    def remove(self, request: Request) -> None:
        """Take a request out; nothing happens where it does not wait."""
        self._waiting.discard(request.number)
        if len(self._heap) > 2 * len(self._waiting) + 16:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)

    def clear(self) -> list[Request]:
        """Take everything, in order."""
        return [self.pop() for _ in range(len(self))]

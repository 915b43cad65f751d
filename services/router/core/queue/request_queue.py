"""Requests that wait: in the order of a discipline, or clients in turn and the discipline within.

Where clients take turns, each has a flow. Served is the flow with the least start tag; serving a
request moves its flow's tag on by one, so no client gets ahead of another by more than a request
however many it sends. A client that was away starts at the present virtual time: turns are not
saved up. Adding, taking and removing are O(log n).

Source: Goyal, Vin, Cheng, "Start-time Fair Queuing", SIGCOMM 1996, section 2, with requests as the
unit of service. As in its virtual clock, tags of the past need not be remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from sortedcontainers import SortedList

from services.router.core.model import Request
from services.router.core.queue.byte_budget import ByteBudget
from services.router.core.queue.disciplines import Key, by_arrival

_MOST_FLOWS = 1024
_OTHERS = "\0others"
"""What clients share where more wait than are told apart."""

_Entry = tuple[float, int, Request]


class _Flow:
    """One client's requests that wait.

    Attributes:
        client: Whose.
        turn: Its start tag, and a number that orders equal tags.
        entries: The requests, in order.
    """

    __slots__ = ("client", "entries", "turn")

    def __init__(self, client: str, turn: tuple[float, int]) -> None:
        self.client = client
        self.turn = turn
        self.entries: SortedList[_Entry] = SortedList()


class Queue:
    """Requests in order; each may leave from anywhere, or change its place.

    Args:
        key: The discipline.
        fair: Clients take turns.
        byte_budget: Where what waits is counted, too.

    Attributes:
        size_bytes: Of the bodies that wait.
    """

    def __init__(
        self, key: Key = by_arrival, *, fair: bool = False, byte_budget: ByteBudget | None = None
    ) -> None:
        self.size_bytes = 0
        self._byte_budget = byte_budget or ByteBudget()
        self._key = key
        self._fair = fair
        self._places: dict[int, tuple[_Flow, _Entry]] = {}
        self._flows: dict[str, _Flow] = {}
        self._sequencer: SortedList[tuple[float, int]] = SortedList()
        self._by_turn: dict[int, _Flow] = {}
        self._numbers = count()
        self._now = 0.0  # virtual time: the start tag last served
        self._served: dict[str, float] = {}  # next start of flows that just became empty

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Request]:
        return (entry[2] for _, entry in self._places.values())

    # ---- coming and going ----------------------------------------------------------------------

    def push(self, request: Request) -> None:
        """Add a request, new or returned."""
        flow = self._flow(request)
        entry = (self._key(request), request.order, request)
        flow.entries.add(entry)
        self._places[request.number] = flow, entry
        self._weigh(len(request.body))

    def pop(self) -> Request:
        """Take the first request.

        Raises:
            IndexError: Nothing waits.
        """
        start, number = self._sequencer[0]
        flow = self._by_turn[number]
        request = flow.entries[0][2]
        if self._fair:
            self._now = start
            self._enter(flow, start + 1.0)
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        """Take a request out; nothing happens where it does not wait."""
        place = self._places.pop(request.number, None)
        if place is None:
            return
        flow, entry = place
        flow.entries.remove(entry)
        self._weigh(-len(request.body))
        if not flow.entries:
            self._close(flow)

    def clear(self) -> list[Request]:
        """Take everything, in order."""
        return [self.pop() for _ in range(len(self))]

    # ---- order ---------------------------------------------------------------------------------

    def reorder(self, request: Request) -> None:
        """Give a request its place anew because its key has changed."""
        if request.number in self._places:
            self.remove(request)
            self.push(request)

    def arrange(self, key: Key, *, fair: bool) -> None:
        """Put everything in another order."""
        if (key, fair) == (self._key, self._fair):
            return
        waiting = list(self)
        self._weigh(-self.size_bytes)
        self._key, self._fair, self._now = key, fair, 0.0
        for kept in (self._places, self._flows, self._sequencer, self._by_turn, self._served):
            kept.clear()
        for request in waiting:
            self.push(request)

    def front(self, most: int) -> list[Request]:
        """Return the first requests of whoever's turn it is, in order, at most so many."""
        if not self._sequencer:
            return []
        flow = self._by_turn[self._sequencer[0][1]]
        return [entry[2] for entry in islice(flow.entries, most)]

    def ahead(self, request: Request) -> int:
        """Return how many requests would go before one that does not wait yet.

        Where clients take turns: at most, as if every other flow had enough for all turns.
        """
        flow = self._flows.get(self._client(request))
        rank = flow.entries.bisect_left((self._key(request), request.order, request)) if flow else 0
        if not self._fair:
            return rank
        flows = len(self._flows) + (flow is None)
        return min(len(self), (rank + 1) * flows - 1)

    def behind(self, request: Request) -> Request | None:
        """Return who makes room in a full queue for a request that does not wait yet.

        The last of the client that has the most; None: that is this very request.
        """
        if not self._flows:
            return None
        mine = self._flows.get(self._client(request))
        longest = max(self._flows.values(), key=lambda flow: (len(flow.entries), flow is mine))
        if longest is not mine and len(longest.entries) > 1 + (len(mine.entries) if mine else 0):
            return longest.entries[-1][2]
        if mine is None or mine.entries[-1][:2] < (self._key(request), request.order):
            return None
        return mine.entries[-1][2]

    # ---- inside --------------------------------------------------------------------------------

    def _weigh(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._byte_budget.used_bytes += size_bytes

    def _client(self, request: Request) -> str:
        if not self._fair:
            return ""
        if not request.client and request.whose is not None:
            request.client = request.whose()
        client = request.client
        return client if client in self._flows or len(self._flows) < _MOST_FLOWS else _OTHERS

    def _flow(self, request: Request) -> _Flow:
        client = self._client(request)
        flow = self._flows.get(client)
        if flow is None:
            flow = self._flows[client] = _Flow(client, (0.0, -1))
            self._enter(flow, max(self._now, self._served.pop(client, 0.0)))
        return flow

    def _enter(self, flow: _Flow, start: float) -> None:
        """Give a flow a place among the turns, in place of the one it had."""
        self._leave(flow)
        flow.turn = (start, next(self._numbers))
        self._by_turn[flow.turn[1]] = flow
        self._sequencer.add(flow.turn)

    def _leave(self, flow: _Flow) -> None:
        if self._by_turn.pop(flow.turn[1], None) is not None:
            self._sequencer.remove(flow.turn)

    def _close(self, flow: _Flow) -> None:
        """Forget a flow without requests, all but a tag that lies ahead."""
        del self._flows[flow.client]
        self._leave(flow)
        if not self._flows:  # a busy period has ended: virtual time begins anew
            self._now = 0.0
            self._served.clear()
        elif flow.turn[0] > self._now:
            if len(self._served) >= _MOST_FLOWS:  # costs each of them one turn's fairness
                self._served.clear()
            self._served[flow.client] = flow.turn[0]

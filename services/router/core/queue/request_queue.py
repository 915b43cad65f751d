"""Waiting requests, in the order of a discipline; or fair over clients, each in that order.

Where clients take turns, each has a flow. The flow with the least start tag is served; serving a
request moves its flow's tag on by one, so no client gets ahead of another by more than a request
however many it sends. A client that was away starts at the present virtual time: turns are not
saved up. Adding, taking and removing are O(log n).

Source: Goyal, Vin, Cheng, "Start-time Fair Queuing", SIGCOMM 1996, section 2, with requests as the
unit of service. As in its virtual clock, tags of the past need not be remembered.

A discipline is a sort key: the smallest goes first, equal keys in order of arrival. A key that
changes while a request waits (a predicted length that arrives late) takes effect with `reorder`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from operator import attrgetter

from sortedcontainers import SortedKeyList, SortedList

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
    """Speculative shortest job first: the shorter the answer, the earlier its rank.

    Source: as `services.router.core.queue.boost`.
    """
    return pending.request.arrived_s - pending.boost_s


DISCIPLINES: Mapping[Discipline, SortKey] = {
    "fcfs": by_arrival,
    "edf": by_deadline,
    "priority": by_priority,
    "ssjf": by_boosted_arrival,
}


@dataclass(slots=True)
class ByteBudget:
    """Bytes of request bodies that wait. Attributes: limit_bytes, used_bytes."""

    limit_bytes: int = 2**63
    used_bytes: int = 0

    def fits(self, size_bytes: int) -> bool:
        """Return whether so many more bytes may wait."""
        return self.used_bytes + size_bytes <= self.limit_bytes


_MAX_FLOWS = 1024
_OTHERS = "\0others"
"""The flow that all further clients share."""

_Entry = tuple[float, int, PendingRequest]
_turn = attrgetter("turn")


@dataclass(slots=True, eq=False)
class _Flow:
    """The waiting requests of one client.

    Attributes:
        client: Identity of the client.
        turn: Start tag, and a number that orders equal tags.
        entries: The requests, in order.
    """

    client: str
    turn: tuple[float, int] = (0.0, -1)
    entries: SortedList[_Entry] = field(default_factory=SortedList)


class RequestQueue:
    """Requests in order; each may be removed from any place, or change its place.

    Args:
        key: The discipline; clients do not take turns until `arrange` says so.
        byte_budget: Budget of all models that the waiting bodies count against.

    Attributes:
        places: Where each waiting request is, by number.
        size_bytes: Size of the waiting bodies.
    """

    def __init__(self, key: SortKey = by_arrival, *, byte_budget: ByteBudget | None = None) -> None:
        self.size_bytes = 0
        self._byte_budget = byte_budget or ByteBudget()
        self._key = key
        self._fair = False
        self.places: dict[int, tuple[_Flow, _Entry]] = {}
        self._flows: dict[str, _Flow] = {}
        self._turns: SortedKeyList[_Flow, tuple[float, int]] = SortedKeyList(key=_turn)
        self._numbers = count()
        self._now = 0.0  # virtual time: the start tag last served
        self._served: dict[str, float] = {}  # next start of flows that just became empty

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[PendingRequest]:
        return (entry[2] for _, entry in self.places.values())

    # ---- coming and going ----------------------------------------------------------------------

    def push(self, pending: PendingRequest) -> None:
        """Add a request, new or returned."""
        flow = self._flow(pending)
        entry = (self._key(pending), pending.order, pending)
        flow.entries.add(entry)
        self.places[pending.request.number] = flow, entry
        self._weigh(len(pending.request.body))

    def pop(self) -> PendingRequest:
        """Take the first request.

        Raises:
            IndexError: The queue is empty.
        """
        flow = self._turns[0]
        pending = flow.entries[0][2]
        if self._fair:
            self._now = flow.turn[0]
            self._enter(flow, self._now + 1.0)
        self.remove(pending)
        return pending

    def remove(self, pending: PendingRequest) -> None:
        """Remove a request; nothing happens where it does not wait."""
        place = self.places.pop(pending.request.number, None)
        if place is None:
            return
        flow, entry = place
        flow.entries.remove(entry)
        self._weigh(-len(pending.request.body))
        if not flow.entries:
            self._close(flow)

    def clear(self) -> list[PendingRequest]:
        """Take everything, in order."""
        return [self.pop() for _ in range(len(self))]

    # ---- order ---------------------------------------------------------------------------------

    def reorder(self, pending: PendingRequest) -> None:
        """Place a request again because its key has changed."""
        if pending.request.number in self.places:
            self.remove(pending)
            self.push(pending)

    def arrange(self, key: SortKey, *, fair: bool) -> None:
        """Put all requests in another order."""
        if (key, fair) == (self._key, self._fair):
            return
        waiting = list(self)
        self._weigh(-self.size_bytes)
        self._key, self._fair, self._now = key, fair, 0.0
        for kept in (self.places, self._flows, self._turns, self._served):
            kept.clear()
        for pending in waiting:
            self.push(pending)

    def front(self, most: int) -> list[PendingRequest]:
        """Return the first requests of the client whose turn it is, in order, at most `most`."""
        if not self._turns:
            return []
        return [entry[2] for entry in islice(self._turns[0].entries, most)]

    def ahead(self, pending: PendingRequest) -> int:
        """Return how many requests would go before one that does not wait yet.

        Where clients take turns: at most, as if every other flow had enough for all turns.
        """
        flow = self._flows.get(self._client(pending))
        rank = flow.entries.bisect_left((self._key(pending), pending.order, pending)) if flow else 0
        if not self._fair:
            return rank
        flows = len(self._flows) + (flow is None)
        return min(len(self), (rank + 1) * flows - 1)

    def behind(self, pending: PendingRequest) -> PendingRequest | None:
        """Return the request to evict from a full queue in favour of a new one.

        The last one of the client that has the most; None: that would be the new one itself.
        """
        if not self._flows:
            return None
        mine = self._flows.get(self._client(pending))
        longest = max(self._flows.values(), key=lambda flow: (len(flow.entries), flow is mine))
        if longest is not mine and len(longest.entries) > 1 + (len(mine.entries) if mine else 0):
            return longest.entries[-1][2]
        if mine is None or mine.entries[-1][:2] < (self._key(pending), pending.order):
            return None
        return mine.entries[-1][2]

    # ---- inside --------------------------------------------------------------------------------

    def _weigh(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._byte_budget.used_bytes += size_bytes

    def _client(self, pending: PendingRequest) -> str:
        if not self._fair:
            return ""
        client = pending.client()
        return client if client in self._flows or len(self._flows) < _MAX_FLOWS else _OTHERS

    def _flow(self, pending: PendingRequest) -> _Flow:
        client = self._client(pending)
        flow = self._flows.get(client)
        if flow is None:
            flow = self._flows[client] = _Flow(client)
            self._enter(flow, max(self._now, self._served.pop(client, 0.0)))
        return flow

    def _enter(self, flow: _Flow, start: float) -> None:
        """Give a flow a new place among the turns."""
        self._turns.discard(flow)
        flow.turn = (start, next(self._numbers))
        self._turns.add(flow)

    def _close(self, flow: _Flow) -> None:
        """Remove a flow without requests; keep its tag if it lies ahead."""
        del self._flows[flow.client]
        self._turns.discard(flow)
        if not self._flows:  # a busy period has ended: virtual time starts again at 0
            self._now = 0.0
            self._served.clear()
        elif flow.turn[0] > self._now:
            if len(self._served) >= _MAX_FLOWS:  # costs each of them one turn's fairness
                self._served.clear()
            self._served[flow.client] = flow.turn[0]

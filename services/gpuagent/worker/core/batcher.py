"""Batching: the choice of requests that run together.

While a batch executes, arrivals queue; then the next batch takes what is there, up to the batch
size, and never waits to fill. The oldest request goes first, so none starves but one that can wait.
"""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from services.kit.errors import InvalidArgument, ResourceExhausted


@dataclass(frozen=True, slots=True, eq=False)
class Queued:
    """A request that waits.

    Attributes:
        kind: Requests of equal kind may share a batch; None: it runs alone.
        items: Items it brings, >= 1. A request is never split.
        deadline_s: Time after which its answer is useless.
        waiting: It can wait: those that cannot go before it.
    """

    kind: Hashable
    items: int
    deadline_s: float
    waiting: bool = field(default=False, kw_only=True)


J = TypeVar("J", bound=Queued)


class Next(NamedTuple, Generic[J]):
    """Requests to run together, and those whose deadline has passed."""

    batch: tuple[J, ...]
    expired: tuple[J, ...]


class Batcher(Generic[J]):
    """A queue of requests.

    Args:
        batch_size: Largest batch, items, >= 1. A request that alone is larger runs alone.
        bound: Most requests that may wait.

    Attributes:
        queue: The requests, oldest first; those that can wait behind the others.
    """

    def __init__(self, batch_size: int, bound: int) -> None:
        if batch_size < 1:
            raise InvalidArgument(f"batch_size must be >= 1, got {batch_size}")
        self._batch_size = batch_size
        self._bound = bound
        self.queue: deque[J] = deque()

    def add(self, queued: J) -> None:
        """Queue a request.

        Raises:
            ResourceExhausted: The bound is reached; callers stayed not within their credits.
        """
        if len(self.queue) >= self._bound:
            raise ResourceExhausted(f"{self._bound} requests wait already", retry_after_s=0.05)
        if queued.waiting or not self.queue or not self.queue[-1].waiting:
            self.queue.append(queued)
            return
        place = next(place for place, each in enumerate(self.queue) if each.waiting)
        self.queue.insert(place, queued)

    def remove(self, chosen: Callable[[J], bool]) -> tuple[J, ...]:
        """Take the chosen requests out of the queue and return them, oldest first."""
        removed = tuple(queued for queued in self.queue if chosen(queued))
        self.queue = deque(queued for queued in self.queue if not chosen(queued))
        return removed

    def take(self, now_s: float) -> Next[J]:
        """Take the next batch: the oldest request and, in order, those that fit beside it."""
        batch: list[J] = []
        expired: list[J] = []
        rest: deque[J] = deque()
        room = self._batch_size
        for queued in self.queue:
            if queued.deadline_s <= now_s:
                expired.append(queued)
            elif not batch or (queued.kind == batch[0].kind and queued.items <= room):
                batch.append(queued)
                # Alone: nothing may join it. Otherwise one that does not fit closes the batch
                # for its kind, or a small late request would overtake it again and again.
                room = 0 if queued.kind is None else room - queued.items
            else:
                if queued.kind == batch[0].kind:
                    room = 0
                rest.append(queued)
        self.queue = rest
        return Next(tuple(batch), tuple(expired))

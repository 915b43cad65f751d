"""Which requests run together next.

While a batch executes, arrivals queue; then the next batch takes what is there, up to the batch
size, and never waits to fill. The oldest request always goes first, so none starves.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from services.kit.errors import InvalidArgument, ResourceExhausted

Work = TypeVar("Work")


@dataclass(frozen=True, slots=True, eq=False)
class Pending(Generic[Work]):
    """A request that waits.

    Attributes:
        work: What to hand back.
        kind: Requests of equal kind may share a batch; None: it runs alone.
        items: Items it brings, >= 1. A request is never split.
        arrived_s: When it came.
        deadline_s: When its answer is of no use any more.
    """

    work: Work
    kind: Hashable
    items: int
    arrived_s: float
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Next(Generic[Work]):
    """What to do next. Attributes: batch (run together), expired (not to be started)."""

    batch: tuple[Pending[Work], ...]
    expired: tuple[Pending[Work], ...]


class Batcher(Generic[Work]):
    """A queue of requests.

    Args:
        batch_size: Largest batch, items, >= 1. A request that alone is larger runs alone.
        bound: Most requests that may wait.
    """

    def __init__(self, batch_size: int, bound: int) -> None:
        if batch_size < 1:
            raise InvalidArgument(f"batch_size must be >= 1, got {batch_size}")
        self._batch_size = batch_size
        self._bound = bound
        self._queue: deque[Pending[Work]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, pending: Pending[Work]) -> None:
        """Queue a request.

        Raises:
            ResourceExhausted: The bound is reached; callers stayed not within their credits.
        """
        if len(self._queue) >= self._bound:
            raise ResourceExhausted(f"{self._bound} requests wait already", retry_after_s=0.05)
        self._queue.append(pending)

    def remove(self, chosen: Callable[[Work], bool]) -> tuple[Work, ...]:
        """Take the chosen requests out of the queue and return them, oldest first."""
        removed = tuple(pending.work for pending in self._queue if chosen(pending.work))
        self._queue = deque(pending for pending in self._queue if not chosen(pending.work))
        return removed

    def take(self, now_s: float) -> Next[Work]:
        """Take the next batch: the oldest request and, in order, those that fit beside it."""
        expired = tuple(pending for pending in self._queue if pending.deadline_s <= now_s)
        alive = [pending for pending in self._queue if pending.deadline_s > now_s]
        batch: list[Pending[Work]] = []
        rest: deque[Pending[Work]] = deque()
        room = self._batch_size
        for pending in alive:
            if not batch or (pending.kind == batch[0].kind and pending.items <= room):
                batch.append(pending)
                # Alone: nothing may join it. Otherwise one that does not fit closes the batch
                # for its kind, or a small late request would overtake it again and again.
                room = 0 if pending.kind is None else room - pending.items
            else:
                if pending.kind == batch[0].kind:
                    room = 0
                rest.append(pending)
        self._queue = rest
        return Next(tuple(batch), expired)

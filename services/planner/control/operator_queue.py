"""What operators order: taken one after the other, between two plans of the planner's own."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from services.kit.errors import ServiceError, Unavailable
from services.planner.core.cycle.cycle import Work
from services.planner.core.cycle.environment import ChangeEvent

T = TypeVar("T")

Begin = Callable[[], Awaitable[tuple[T, Work | None]]]
"""Carries an order out as far as its caller waits for it; with what is left to do: the rollout."""


class OperatorQueue:
    """Orders that wait for their turn. Attributes: changed (notified when one comes)."""

    def __init__(self, changed: ChangeEvent) -> None:
        self.changed = changed
        self._waiting: deque[tuple[Begin[Any], asyncio.Future[Any]]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def give(self, begin: Begin[T]) -> T:
        """Give an order; return its answer.

        Raises:
            ServiceError: It cannot be carried out.
        """
        if self._closed:
            raise Unavailable("the planner stops")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((begin, answer))
        self.changed.notify()
        return await answer

    def take(self) -> Work | None:
        """Return what carries out the order whose turn it is."""
        return partial(_carry_out, *self._waiting.popleft()) if self._waiting else None

    def close(self) -> None:
        """Refuse all that wait, and all that come."""
        self._closed = True
        while self._waiting:
            _refuse(self._waiting.popleft()[1], Unavailable("the planner stops"))


async def _carry_out(begin: Begin[T], answer: asyncio.Future[T]) -> None:
    """Begin an order, answer it, and do what is left to do.

    An order that cannot be carried out is answered with the reason, and nothing has changed. One
    whose caller has gone is not begun.
    """
    if answer.done():
        return
    try:
        result, rest = await begin()
    except ServiceError as error:
        _refuse(answer, error)
        return
    except BaseException:
        _refuse(answer, Unavailable("the planner stopped before the order was carried out"))
        raise
    if not answer.done():
        answer.set_result(result)
    if rest is not None:
        await rest()


def _refuse(answer: asyncio.Future[Any], error: ServiceError) -> None:
    if not answer.done():
        answer.set_exception(error)

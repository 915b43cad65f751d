"""Operators' orders, carried out one after another between two plans of the planner's own."""

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
"""Starts an order; returns its reply and the rollout still to run."""


class OperatorQueue:
    """Queue of orders. Attributes: changed (notified when one arrives)."""

    def __init__(self, changed: ChangeEvent) -> None:
        self.changed = changed
        self._waiting: deque[tuple[Begin[Any], asyncio.Future[Any]]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def give(self, begin: Begin[T]) -> T:
        """Queue an order; return its reply.

        Raises:
            ServiceError: It cannot be carried out.
        """
        if self._closed:
            raise Unavailable("the planner is stopping")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((begin, answer))
        self.changed.notify()
        return await answer

    def take(self) -> Work | None:
        """Return the work of the next order; None: none waits."""
        return partial(_carry_out, *self._waiting.popleft()) if self._waiting else None

    def close(self) -> None:
        """Refuse all waiting and future orders."""
        self._closed = True
        while self._waiting:
            _refuse(self._waiting.popleft()[1], Unavailable("the planner is stopping"))


async def _carry_out(begin: Begin[T], answer: asyncio.Future[T]) -> None:
    """Start an order, send its reply, and run its rollout.

    An order that cannot be carried out gets the reason, and nothing has changed. One whose caller
    has gone is not started.
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

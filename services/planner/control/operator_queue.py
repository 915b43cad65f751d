"""What operators order: taken one after the other, between two plans of the planner's own."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from services.kit.errors import ServiceError, Unavailable
from services.planner.core.cycle.environment import ChangeEvent

T = TypeVar("T")

Work = Callable[[], Awaitable[None]]
"""What is left to do when an order has been answered: the rollout."""

Begin = Callable[[], Awaitable[tuple[T, Work | None]]]
"""Carries an order out as far as its caller waits for it."""


class OperatorCommand(Generic[T]):
    """One order, and who waits for it."""

    def __init__(self, begin: Begin[T]) -> None:
        self._begin = begin
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def carry_out(self) -> None:
        """Begin, answer, and do what is left to do.

        An order that cannot be carried out is answered with the reason, and nothing has changed.
        """
        rest = await self._obey()
        if rest is not None:
            await rest()

    async def _obey(self) -> Work | None:
        if self.answer.done():
            return None  # who gave it has gone before it was begun
        try:
            result, rest = await self._begin()
        except ServiceError as error:
            self._settle(error)
            return None
        except BaseException:
            self._settle(Unavailable("the planner stopped before the order was carried out"))
            raise
        if not self.answer.done():
            self.answer.set_result(result)
        return rest

    def refuse(self) -> None:
        """Answer without carrying it out: the planner stops."""
        self._settle(Unavailable("the planner stops"))

    def _settle(self, error: ServiceError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class OperatorQueue:
    """Commands that wait for their turn. Attributes: changed (notified when one comes)."""

    def __init__(self, changed: ChangeEvent) -> None:
        self.changed = changed
        self._waiting: deque[OperatorCommand[object]] = deque()
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
        order = OperatorCommand(begin)
        self._waiting.append(order)  # type: ignore[arg-type]  # who waits knows the type
        self.changed.notify()
        return await order.answer

    def take(self) -> OperatorCommand[object] | None:
        """Return the order whose turn it is."""
        return self._waiting.popleft() if self._waiting else None

    def close(self) -> None:
        """Refuse all that wait, and all that come."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().refuse()

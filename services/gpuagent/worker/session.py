"""One router's stream, as the worker's core sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from services.kit.errors import InvalidArgument, ServiceError


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request cost.

    Attributes:
        energy_j: Its share of its batch's active energy, J.
        idle_energy_j: Its share of the idle energy since the batch before, J.
        energy_method: How energy_j was obtained.
        queue_s: Time it waited here, s.
        compute_s: Time its batch was executing, s.
        batch_size: Items in its batch.
    """

    energy_j: float
    idle_energy_j: float
    energy_method: str
    queue_s: float
    compute_s: float
    batch_size: int


@dataclass(frozen=True, slots=True)
class Answer:
    """How a piece of work ended: an error, or a response and its cost."""

    id: int
    error: ServiceError | None = None
    response: bytes = b""
    cost: Cost | None = None


@dataclass(frozen=True, slots=True)
class News:
    """What a stream is told next. Attributes: answers, draining (said once)."""

    answers: tuple[Answer, ...]
    draining: bool


class Session:
    """Work taken in on one stream, and answers that wait to be sent."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._answers: list[Answer] = []
        self._changed = asyncio.Event()
        self._draining = False
        self._draining_told = False
        self._input_ended = False

    def take_in(self, work_id: int) -> None:
        """Note a piece of work.

        Raises:
            InvalidArgument: Its id is in use on this stream.
        """
        if work_id in self._open:
            raise InvalidArgument(f"work id {work_id} is in use on this stream", field="work.id")
        self._open.add(work_id)

    def answer(self, answer: Answer) -> None:
        """Queue an answer to a piece of work; a second one to the same is dropped."""
        if answer.id in self._open:
            self._open.discard(answer.id)
            self.tell(answer)

    def tell(self, answer: Answer) -> None:
        """Queue an answer to work that was never taken in."""
        self._answers.append(answer)
        self._changed.set()

    def drain(self) -> None:
        """Say that no more work is taken."""
        self._draining = True
        self._changed.set()

    def end_input(self) -> None:
        """Note that the router sends no more."""
        self._input_ended = True
        self._changed.set()

    async def news(self) -> News | None:
        """Wait for something to send; None: all is said and done."""
        while not self._answers and self._draining == self._draining_told:
            if (self._draining or self._input_ended) and not self._open:
                return None
            self._changed.clear()
            await self._changed.wait()
        told = News(tuple(self._answers), self._draining and not self._draining_told)
        self._answers.clear()
        self._draining_told = self._draining
        return told

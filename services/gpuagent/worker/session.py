"""One router's stream, as the worker's core sees it."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from services.gpuagent.worker.core.credits import Share
from services.kit.errors import InvalidArgument, ServiceError
from services.kit.request_cost import Cost


@dataclass(frozen=True, slots=True)
class Answer:
    """How a piece of work ended: an error, or a response; and its cost, where it was started.

    With `more` it is a part of the response, and the work continues.
    """

    id: int
    error: ServiceError | None = None
    response: bytes = b""
    cost: Cost | None = None
    more: bool = False

    @classmethod
    def of(cls, work_id: int, outcome: bytes | ServiceError, cost: Cost) -> Self:
        """Return how work ended that was started."""
        if isinstance(outcome, ServiceError):
            return cls(work_id, error=outcome, cost=cost)
        return cls(work_id, response=outcome, cost=cost)


@dataclass(frozen=True, slots=True)
class News:
    """What a stream is sent next.

    Attributes:
        answers: To work.
        draining: No more work is taken; said once.
        credits: Requests that may be in flight from now on; 0: as before.
    """

    answers: tuple[Answer, ...]
    draining: bool = False
    credits: int = 0


class Session:
    """Work taken in on one stream, and answers that wait to be sent.

    What it holds is counted in bytes: requests until they are answered, responses until they are
    sent. A router that sends too much, or does not read, is not read from until there is room.

    Args:
        share: The stream's part of the credits.
        credit_bytes: Bytes that it may hold per credit before it has no room.
    """

    def __init__(self, share: Share, credit_bytes: int) -> None:
        self.share = share
        self._credit_bytes = credit_bytes
        self._open: dict[int, int] = {}  # bytes by id
        self._unwanted: set[int] = set()
        self._answers: list[Answer] = []
        self._in_bytes = 0  # requests not answered
        self._out_bytes = 0  # responses not sent
        self._sending_bytes = 0  # of those, what is on its way
        self._sent_credits = 0
        self._changed = asyncio.Event()
        self._freed = asyncio.Event()
        self._draining = False
        self._draining_sent = False
        self._input_ended = False

    @property
    def _most_bytes(self) -> int:
        return self.share.credits * self._credit_bytes

    # ---- what comes in -------------------------------------------------------------------------

    def take_in(self, work_id: int, size_bytes: int) -> None:
        """Note a piece of work.

        Raises:
            InvalidArgument: Its id is in use on this stream.
        """
        if work_id in self._open:
            raise InvalidArgument(f"work id {work_id} is in use on this stream", field="work.id")
        self._open[work_id] = size_bytes
        self._in_bytes += size_bytes

    def cancel(self, work_ids: Iterable[int]) -> None:
        """Note that no client waits for these answers any more."""
        self._unwanted |= self._open.keys() & work_ids
        self._freed.set()  # who waits to tell a part waits in vain

    def wants(self, work_id: int) -> bool:
        """Return whether a client waits for an answer to a piece of work."""
        return work_id in self._open and work_id not in self._unwanted

    async def room(self) -> None:
        """Wait until more may be taken in."""
        while self._in_bytes + self._out_bytes >= self._most_bytes:
            self._freed.clear()
            await self._freed.wait()

    def end_input(self) -> None:
        """Note that the router sends no more."""
        self._input_ended = True
        self._changed.set()

    def close(self) -> None:
        """Note that the stream is gone: no answer is wanted."""
        self._open.clear()
        self._in_bytes = self._out_bytes = self._sending_bytes = 0
        self._freed.set()

    # ---- what goes out -------------------------------------------------------------------------

    def answer(self, answer: Answer) -> bool:
        """Queue the answer to a piece of work; False: nothing waits for one, it is dropped."""
        size_bytes = self._open.pop(answer.id, None)
        if size_bytes is None:
            return False
        self._unwanted.discard(answer.id)
        self._in_bytes -= size_bytes
        self._freed.set()
        self.send(answer)
        return True

    async def send_part(self, answer: Answer) -> bool:
        """Queue a part of an answer when there is room; False: no client waits for it any more."""
        while self.wants(answer.id) and self._out_bytes >= self._most_bytes:
            self._freed.clear()
            await self._freed.wait()
        wanted = self.wants(answer.id)
        if wanted:
            self.send(answer)
        return wanted

    def send(self, answer: Answer) -> None:
        """Queue what is said of work without ending it, or of work that was never taken in."""
        self._out_bytes += len(answer.response)
        self._answers.append(answer)
        self._changed.set()

    def drain(self) -> None:
        """Say that no more work is taken."""
        self._draining = True
        self._changed.set()

    def look_at_credits(self) -> None:
        """Send the credits where they differ from what was sent last."""
        if self.share.credits != self._sent_credits:
            self._changed.set()
            self._freed.set()

    def greet(self) -> int:
        """Return the credits to begin with."""
        self._sent_credits = self.share.credits
        return self._sent_credits

    async def news(self) -> News | None:
        """Wait for something to send; None: all is said and done.

        Call it again once that is sent: only then it counts as held no more.
        """
        self._out_bytes -= self._sending_bytes
        self._sending_bytes = 0
        self._freed.set()
        while not (
            self._answers
            or self._draining != self._draining_sent
            or self.share.credits != self._sent_credits
        ):
            if (self._draining or self._input_ended) and not self._open:
                return None
            self._changed.clear()
            await self._changed.wait()
        changed = self.share.credits != self._sent_credits
        told = News(
            answers=tuple(self._answers),
            draining=self._draining and not self._draining_sent,
            credits=self.greet() if changed else 0,
        )
        self._answers.clear()
        self._draining_sent = self._draining
        self._sending_bytes = sum(len(answer.response) for answer in told.answers)
        return told

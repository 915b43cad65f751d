"""One router's stream, as the worker's core sees it."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from services.gpuagent.worker.core.credits import Share
from services.kit.errors import Cancelled, InvalidArgument, ServiceError
from services.kit.request_cost import Cost


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a piece of work: an error, or a response; and its cost, where it was started.

    With `more` it is a part of the response, and the work continues.
    """

    id: int
    error: ServiceError | None = None
    response: bytes = b""
    cost: Cost | None = None
    more: bool = False


class StreamUpdate(NamedTuple):
    """The next message of a stream.

    Attributes:
        answers: To work.
        draining: No more work is taken; sent once.
        credits: Requests that may be in flight from now on; 0: as before.
    """

    answers: list[Answer]
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
        """Mark answers whose clients have gone."""
        self._unwanted |= self._open.keys() & work_ids
        self._freed.set()  # wake send_part(): its client has gone

    def wants(self, work_id: int) -> bool:
        """Return whether a client waits for an answer to a piece of work."""
        return work_id in self._open and work_id not in self._unwanted

    async def room(self) -> None:
        """Wait until more may be taken in."""
        while self._in_bytes + self._out_bytes >= self.share.credits * self._credit_bytes:
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
        """Queue the answer to a piece of work; False: nothing waits for one, it is dropped.

        Where its client has gone, only its cost is sent.
        """
        size_bytes = self._open.pop(answer.id, None)
        if size_bytes is None:
            return False
        if answer.id in self._unwanted:
            self._unwanted.discard(answer.id)
            gone = answer.error or Cancelled("cancelled while it was computed")
            answer = replace(answer, error=gone, response=b"")
        self._in_bytes -= size_bytes
        self._out_bytes += len(answer.response)
        self._answers.append(answer)
        self._freed.set()
        self._changed.set()
        return True

    async def send_part(self, answer: Answer) -> bool:
        """Queue a part of an answer when there is room; False: no client waits for it any more."""
        most_bytes = self.share.credits * self._credit_bytes
        while self.wants(answer.id) and self._out_bytes >= most_bytes:
            self._freed.clear()
            await self._freed.wait()
            most_bytes = self.share.credits * self._credit_bytes
        wanted = self.wants(answer.id)
        if wanted:
            self.send(answer)
        return wanted

    def send(self, answer: Answer) -> None:
        """Queue a part of an answer, or the refusal of work that was never taken in."""
        self._out_bytes += len(answer.response)
        self._answers.append(answer)
        self._changed.set()

    def drain(self) -> None:
        """Take no more work, and notify the router."""
        self._draining = True
        self._changed.set()

    def note_credits(self) -> None:
        """Send the credits where they differ from those that were sent last."""
        if self.share.credits != self._sent_credits:
            self._changed.set()
            self._freed.set()

    def first_credits(self) -> int:
        """Return the credits to begin with."""
        self._sent_credits = self.share.credits
        return self._sent_credits

    async def next_update(self) -> StreamUpdate | None:
        """Wait for something to send; None: the stream is complete.

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
        answers, self._answers = self._answers, []
        draining = self._draining and not self._draining_sent
        credits_ = self.share.credits if self.share.credits != self._sent_credits else 0
        self._sent_credits, self._draining_sent = self.share.credits, self._draining
        self._sending_bytes = self._out_bytes
        return StreamUpdate(answers, draining, credits_)

"""Base of every worker's core: streams of work in, answers out."""

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

from cinquefoil.gpuagent.v1.worker_pb2 import Work
from services.gpuagent.worker.core.batcher import Batcher, Queued
from services.gpuagent.worker.core.credits import Credits
from services.gpuagent.worker.gpu_slot import WorkerDevice
from services.gpuagent.worker.model_port import R, Reader
from services.gpuagent.worker.session import Answer, Session
from services.gpuagent.worker.work_messages import Body
from services.kit.clock import Clock
from services.kit.errors import Cancelled, DeadlineExceeded, ServiceError, Unavailable

M = TypeVar("M", bound=Reader[Any])
D = TypeVar("D", bound=WorkerDevice)

INTAKE_BYTES: Final = 256 * 2**20
"""Of all streams of a worker together, bytes; each may hold its credits' part."""

_LONGEST_WAIT_S: Final = 3600.0
"""Time for which a request is believed to have waited at its router, s."""


@dataclass(frozen=True, slots=True, eq=False)
class Job(Queued, Generic[R]):
    """A request from its arrival until it is answered.

    Attributes:
        session: The stream that wants its answer.
        id: The work's id there.
        request: The request.
        came_s: When it came to the router.
        arrived_s: When it came here.
        in_parts: Its caller takes an answer in parts.
    """

    session: Session
    id: int
    request: R
    came_s: float
    arrived_s: float
    in_parts: bool


@dataclass(eq=False)
class Intake(Generic[R, D, M]):
    """Takes work in and sends answers; what lies between is a subclass's `run`.

    Attributes:
        batcher: The queue.
        device: Where work runs.
        model: Reads requests, and computes.
        credits_: How many requests may be in flight, and on which streams.
        clock: The device's clock.
        intake_bytes: What the streams may hold together: requests and unsent responses.
    """

    batcher: Batcher[Job[R]]
    device: D
    model: M
    credits_: Credits
    clock: Clock
    intake_bytes: int = field(default=INTAKE_BYTES, kw_only=True)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _sessions: set[Session] = field(default_factory=set)
    _draining: bool = False
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._empty.set()

    # ---- streams -------------------------------------------------------------------------------

    def open(self) -> Session:
        """Begin a stream."""
        share = self.credits_.open(self.clock.monotonic())
        session = Session(share, self.intake_bytes // self.credits_.total)
        if self._draining:
            session.drain()
        self._sessions.add(session)
        self._empty.clear()
        self._send_credits()
        return session

    def close(self, session: Session) -> None:
        """End a stream; what it waited for and has not started is dropped."""
        session.close()
        self.batcher.remove(lambda job: job.session is session)
        self._sessions.discard(session)
        self.credits_.close(session.share, self.clock.monotonic())
        self._send_credits()
        if not self._sessions:
            self._empty.set()

    async def drain(self) -> None:
        """Take no more work; return when every stream has its answers and has ended."""
        self._draining = True
        for session in self._sessions:
            session.drain()
        await self._empty.wait()

    # ---- work ----------------------------------------------------------------------------------

    def submit(self, session: Session, work: Work, request: Body, now_s: float) -> None:
        """Queue a request; an error is answered on the stream.

        Args:
            session: Where the answer goes.
            work: Its id there, how long it has waited and may wait, and whether its caller takes an
                answer in parts.
            request: A serialized ModelInferRequest.
            now_s: When it came.
        """
        # What a router states is bounded, since other routers' credits follow from it, too; what is
        # no number counts as 0.
        work_id, waited_s = work.id, min(max(0.0, work.waited_s), _LONGEST_WAIT_S)
        try:
            if self._draining:
                raise Unavailable("this worker drains; try another")
            session.take_in(work_id, len(request))
        except ServiceError as error:
            session.send(Answer(work_id, error))
            return
        self.credits_.take(session.share, waited_s, now_s)
        if now_s >= self.credits_.due_s:
            self._divide(now_s)
        try:
            remaining_s = work.remaining_s
            deadline_s = now_s + remaining_s if math.isfinite(remaining_s or math.inf) else math.inf
            read = self.model.read(request, deadline_s)
            self.batcher.add(
                Job(
                    read.kind,
                    read.items,
                    deadline_s,
                    session,
                    work_id,
                    read,
                    now_s - waited_s,
                    now_s,
                    work.in_parts,
                    waiting=work.waiting,
                )
            )
        except ServiceError as error:
            self._end(session, Answer(work_id, error), now_s)
        else:
            self._arrived.set()

    def cancel(self, session: Session, work_ids: Iterable[int]) -> None:
        """Cancel work whose callers have gone: it is not started, or not sent."""
        gone, now_s = frozenset(work_ids), self.clock.monotonic()
        for job in self.batcher.remove(lambda job: job.session is session and job.id in gone):
            self._end(session, _cancelled(job), now_s)
        session.cancel(gone)

    async def run(self) -> None:
        """Do the work until cancelled."""
        raise NotImplementedError

    async def _next(self) -> tuple[tuple[Job[R], ...], float]:
        """Wait for room and the next batch; return it, and when it was taken.

        Requests past their deadline are answered so.
        """
        while True:
            if not self.batcher.queue:
                self._arrived.clear()
                await self._arrived.wait()
            await self.model.room()
            now_s = self.clock.monotonic()
            chosen = self.batcher.take(now_s)
            for job in chosen.expired:
                self._expire(job, now_s)
            if chosen.batch:
                return chosen.batch, now_s

    # ---- answers -------------------------------------------------------------------------------

    def _to_start(self, job: Job[R]) -> bool:
        """Return whether work may start; answer it where no client waits for it any more."""
        now_s = self.clock.monotonic()
        if not job.session.wants(job.id):
            self._end(job.session, _cancelled(job), now_s)
            return False
        if job.deadline_s <= now_s:
            self._expire(job, now_s)
            return False
        return True

    def _expire(self, job: Job[R], now_s: float) -> None:
        late = DeadlineExceeded("the deadline passed before it started")
        self._end(job.session, Answer(job.id, late), now_s)
        if not job.waiting:
            self.device.answered(now_s - job.came_s)  # too late is the worst latency there is

    def _done(self, job: Job[R], answer: Answer, now_s: float) -> None:
        """Send an answer, or only what it cost where it comes too late."""
        if job.deadline_s <= now_s:
            late = DeadlineExceeded("the deadline passed while it was computed")
            answer = replace(answer, error=late, response=b"")
        self._end(job.session, answer, now_s)
        if job.waiting:  # an objective is for the others alone
            return
        self.device.answered(now_s - job.came_s, answer.cost.usage if answer.cost else None)

    def _end(self, session: Session, answer: Answer, now_s: float) -> None:
        """Answer a piece of work; its credit is free again."""
        if session.answer(answer):
            self.credits_.give_back(session.share, now_s)
        if now_s >= self.credits_.due_s:
            self._divide(now_s)

    def _divide(self, now_s: float) -> None:
        if self.credits_.divide(now_s):
            self._send_credits()

    def _send_credits(self) -> None:
        for session in self._sessions:
            session.note_credits()


def _cancelled(job: Job[Any]) -> Answer:
    return Answer(job.id, Cancelled("cancelled before it started"))

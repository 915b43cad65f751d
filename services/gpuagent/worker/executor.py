"""The worker's core: takes work in, forms batches, runs them, answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from services.gpuagent.worker.batcher import Batcher, Pending
from services.gpuagent.worker.device import Batch, Device, Ran
from services.gpuagent.worker.model import Model, ModelFailed, R
from services.gpuagent.worker.session import Answer, Cost, Session
from services.kit import logs
from services.kit.clock import Clock
from services.kit.errors import Cancelled, DeadlineExceeded, ServiceError, Unavailable

_log = logs.get("worker")


@dataclass(frozen=True, slots=True)
class Timing:
    """A request's time.

    Attributes:
        waited_s: Since it came to the router, s.
        remaining_s: To its caller's deadline, s. 0: none.
    """

    waited_s: float = 0.0
    remaining_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Job(Generic[R]):
    """A request with the stream that wants its answer, and when it came to the router."""

    session: Session
    id: int
    request: R
    came_s: float

    def fail(self, error: ServiceError) -> None:
        """Answer with an error."""
        self.session.answer(Answer(self.id, error))


class Executor(Generic[R]):
    """Runs the work of all streams on one device.

    Args:
        batcher: The queue.
        device: Where batches run.
        model: Computes.
        clock: The device's clock.
    """

    def __init__(
        self, batcher: Batcher[Job[R]], device: Device, model: Model[R], clock: Clock
    ) -> None:
        self._batcher = batcher
        self._device = device
        self._model = model
        self._clock = clock
        self._arrived = asyncio.Event()
        self._sessions: set[Session] = set()
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    # ---- streams -------------------------------------------------------------------------------

    def open(self) -> Session:
        """Begin a stream."""
        session = Session()
        if self._draining:
            session.drain()
        self._sessions.add(session)
        self._empty.clear()
        return session

    def close(self, session: Session) -> None:
        """End a stream; what it waited for and has not started is dropped."""
        self._batcher.remove(lambda job: job.session is session)
        self._sessions.discard(session)
        if not self._sessions:
            self._empty.set()

    async def drain(self) -> None:
        """Take no more work; return when every stream has its answers and has ended."""
        self._draining = True
        for session in self._sessions:
            session.drain()
        await self._empty.wait()

    # ---- work ----------------------------------------------------------------------------------

    def submit(self, session: Session, work_id: int, request: bytes, timing: Timing) -> None:
        """Queue a request; whatever is wrong with it is answered on the stream.

        Args:
            session: Where the answer goes.
            work_id: Its id there.
            request: A serialized ModelInferRequest.
            timing: How long it has waited, and may.
        """
        now_s = self._clock.monotonic()
        try:
            if self._draining:
                raise Unavailable("this worker drains; try another")
            session.take_in(work_id)
        except ServiceError as error:
            session.tell(Answer(work_id, error))
            return
        try:
            deadline_s = now_s + timing.remaining_s if timing.remaining_s else math.inf
            read = self._model.read(request, deadline_s)
            job = Job(session, work_id, read, now_s - timing.waited_s)
            self._batcher.add(Pending(job, read.kind, read.items, now_s, deadline_s))
        except ServiceError as error:
            session.answer(Answer(work_id, error))
        else:
            self._arrived.set()

    def cancel(self, session: Session, work_ids: Iterable[int]) -> None:
        """Drop work that has not started and whose caller has gone."""
        gone = frozenset(work_ids)
        for job in self._batcher.remove(lambda job: job.session is session and job.id in gone):
            job.fail(Cancelled("cancelled before it started"))

    async def run(self) -> None:
        """Run batches for ever."""
        while True:
            self._arrived.clear()
            chosen = self._batcher.take(self._clock.monotonic())
            for pending in chosen.expired:
                pending.work.fail(DeadlineExceeded("the deadline passed before it started"))
                self._count(pending)  # too late is the worst latency there is
            if chosen.batch:
                await self._execute(chosen.batch)
            else:
                await self._arrived.wait()

    async def _execute(self, batch: Sequence[Pending[Job[R]]]) -> None:
        """Run a batch; if it fails, each request alone, so that only the culprit fails."""
        try:
            answers = await self._attempt(batch)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no base class
            if len(batch) == 1:
                _log.warning("model failed", error=str(error), id=batch[0].work.request.id)
                batch[0].work.fail(ModelFailed("the model failed on this request"))
                return
            for pending in batch:
                await self._execute((pending,))
        else:
            for pending, answer in zip(batch, answers, strict=True):
                pending.work.session.answer(answer)
                self._count(pending)

    def _count(self, pending: Pending[Job[R]]) -> None:
        self._device.answered(self._clock.monotonic() - pending.work.came_s)

    async def _attempt(self, batch: Sequence[Pending[Job[R]]]) -> list[Answer]:
        size = Batch(
            items=sum(pending.items for pending in batch),
            requests=len(batch),
            arrived_s=max(pending.arrived_s for pending in batch),
        )
        requests = [pending.work.request for pending in batch]
        ran = await self._device.run(size, lambda: self._model.compute(requests))
        return [
            _answer(pending, outcome, ran, size.items)
            for pending, outcome in zip(batch, ran.outputs(), strict=True)
        ]


def _answer(
    pending: Pending[Job[R]], outcome: bytes | ServiceError, ran: Ran[Any], items: int
) -> Answer:
    if isinstance(outcome, ServiceError):
        return Answer(pending.work.id, error=outcome)
    return Answer(pending.work.id, response=outcome, cost=_cost(ran, pending, items))


def _cost(ran: Ran[Any], pending: Pending[Job[R]], items: int) -> Cost:
    share = pending.items / items
    return Cost(
        energy_j=ran.energy_j * share,
        idle_energy_j=ran.idle_energy_j * share,
        energy_method=ran.method,
        queue_s=max(ran.started_s - pending.arrived_s, 0.0),
        compute_s=ran.compute_s,
        batch_size=items,
    )

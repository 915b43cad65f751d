"""The worker's core: takes work in, forms batches, runs them, answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.gpuagent.worker import requests
from services.gpuagent.worker.batcher import Batcher, Pending
from services.gpuagent.worker.device import Batch, Device, Ran
from services.gpuagent.worker.engine import Engine
from services.gpuagent.worker.requests import Inference
from services.gpuagent.worker.session import Answer, Cost, Session
from services.gpuagent.worker.tensors import Array
from services.kit import logs
from services.kit.clock import Clock
from services.kit.errors import Cancelled, DeadlineExceeded, ServiceError, Unavailable

_log = logs.get("worker")


class ModelFailed(ServiceError):
    """The model could not run a request that looked right."""

    status: ClassVar[str] = "INTERNAL"


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A request with the stream that wants its answer."""

    session: Session
    id: int
    inference: Inference

    def fail(self, error: ServiceError) -> None:
        """Answer with an error."""
        self.session.answer(Answer(self.id, error))


class Executor:
    """Runs the work of all streams on one device.

    Args:
        batcher: The queue.
        device: Where batches run.
        engine: The model.
        clock: The device's clock.
    """

    def __init__(self, batcher: Batcher[Job], device: Device, engine: Engine, clock: Clock) -> None:
        self._batcher = batcher
        self._device = device
        self._engine = engine
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

    def submit(self, session: Session, work_id: int, request: bytes, remaining_s: float) -> None:
        """Queue a request; whatever is wrong with it is answered on the stream.

        Args:
            session: Where the answer goes.
            work_id: Its id there.
            request: A serialized ModelInferRequest.
            remaining_s: Time to the caller's deadline, s. 0: none.
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
            inference = requests.parse(request, self._engine.signature)
            job = Job(session, work_id, inference)
            deadline_s = now_s + remaining_s if remaining_s else math.inf
            self._batcher.add(Pending(job, inference.kind, inference.items, now_s, deadline_s))
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
            if chosen.batch:
                await self._execute(chosen.batch)
            else:
                await self._arrived.wait()

    async def _execute(self, batch: Sequence[Pending[Job]]) -> None:
        """Run a batch; if it fails, each request alone, so that only the culprit fails."""
        try:
            answers = await self._attempt(batch)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no base class
            if len(batch) == 1:
                _log.warning("model failed", error=str(error), id=batch[0].work.inference.id)
                batch[0].work.fail(ModelFailed("the model failed on this request"))
                return
            for pending in batch:
                await self._execute((pending,))
        else:
            for pending, answer in zip(batch, answers, strict=True):
                pending.work.session.answer(answer)

    async def _attempt(self, batch: Sequence[Pending[Job]]) -> list[Answer]:
        jobs = [pending.work for pending in batch]
        size = Batch(
            items=sum(pending.items for pending in batch),
            requests=len(batch),
            arrived_s=max(pending.arrived_s for pending in batch),
        )

        def compute() -> Sequence[Array]:
            return self._engine.run(_joined([job.inference for job in jobs]))

        ran = await self._device.run(size, compute)
        parts = _split(ran.outputs, [pending.items for pending in batch])
        return [
            Answer(
                pending.work.id,
                response=requests.response(pending.work.inference, self._engine.signature, outputs),
                cost=_cost(ran, pending, size.items),
            )
            for pending, outputs in zip(batch, parts, strict=True)
        ]


def _joined(inferences: Sequence[Inference]) -> dict[str, Array]:
    """Return the inputs of all requests, one after another in each tensor."""
    first = inferences[0]
    if len(inferences) == 1:
        return dict(first.feeds)
    return {
        name: np.concatenate([inference.feeds[name] for inference in inferences])
        for name in first.feeds
    }


def _split(outputs: Sequence[Array], items: Sequence[int]) -> list[list[Array]]:
    """Return each request's part of the outputs.

    Raises:
        ValueError: An output has not one row per item: the model mixes requests.
    """
    if len(items) == 1:
        return [list(outputs)]
    if any(len(output) != sum(items) for output in outputs):
        raise ValueError("an output of the batch has not one row per item")
    ends = np.cumsum(items)[:-1]
    return [list(parts) for parts in zip(*(np.split(out, ends) for out in outputs), strict=True)]


def _cost(ran: Ran, pending: Pending[Job], items: int) -> Cost:
    share = pending.items / items
    return Cost(
        energy_j=ran.energy_j * share,
        idle_energy_j=ran.idle_energy_j * share,
        energy_method=ran.method,
        queue_s=max(ran.started_s - pending.arrived_s, 0.0),
        compute_s=ran.compute_s,
        batch_size=items,
    )

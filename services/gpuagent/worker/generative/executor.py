"""The worker's core for language models: a free slot takes the next request.

Continuous batching: no request waits for the longest answer of a batch, and a slot freed by
an end, a cancellation or a deadline, is another request's at the next token.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from services.gpuagent.worker.generative.generation import Generation, TextModel, TextRequest
from services.gpuagent.worker.generative.shared_device import SharedDevice
from services.gpuagent.worker.intake import Intake, Job
from services.gpuagent.worker.model_port import ModelFailed
from services.gpuagent.worker.session import Answer, Session
from services.kit.errors import ServiceError
from services.kit.telemetry import logs

_log = logs.get("worker")

_LONGEST_S: Final = 1e6  # a timer's; a request without a deadline has none


@dataclass(eq=False)
class SlotExecutor(Intake[TextRequest, SharedDevice, TextModel]):
    """Runs the work of all streams, each request on a slot of its own; credits are the slots."""

    _slots: asyncio.Semaphore = field(init=False)
    _running: dict[Job[TextRequest], Generation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._slots = asyncio.Semaphore(self.credits_.total)

    def close(self, session: Session) -> None:
        """End a stream; nothing more is generated for it."""
        super().close(session)
        self._stop(lambda job: job.session is session)

    def cancel(self, session: Session, work_ids: Iterable[int]) -> None:
        """Cancel requests whose callers have gone: nothing more is generated for them."""
        gone = frozenset(work_ids)
        super().cancel(session, gone)
        self._stop(lambda job: job.session is session and job.id in gone)

    async def run(self) -> None:
        """Give every request a slot until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._slots.acquire()
                (job,), _ = await self._next()
                tasks.create_task(self._serve(job), name="worker.generate")

    async def _serve(self, job: Job[TextRequest]) -> None:
        try:
            if self._to_start(job):
                self._done(job, await self._answer(job), self.clock.monotonic())
        finally:
            self._slots.release()

    async def _answer(self, job: Job[TextRequest]) -> Answer:
        """Generate, and hand text on as it comes where it is taken in parts."""
        stay = self.device.begin()
        generation = Generation(
            lambda: self.clock.monotonic() - job.came_s,
            lambda tokens: self.device.count(stay, tokens),
            waiting=job.waiting,
        )
        self._running[job] = generation
        left_s = min(job.deadline_s - self.clock.monotonic(), _LONGEST_S)
        timer = asyncio.get_running_loop().call_later(left_s, generation.stop)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(_send(job, generation), name="worker.tell")
            try:
                ended = await self._generate(job.request, generation)
            finally:
                ran = self.device.end(stay)
                timer.cancel()
                self._running.pop(job)
                generation.end()
        cost = ran.cost(job.arrived_s, usage=generation.usage)
        if isinstance(ended, ServiceError):
            return Answer(job.id, ended, cost=cost)
        last, reasoning = sending.result()
        response = job.request.answer(last + generation.tail, reasoning, ended)
        return Answer(job.id, response=response, cost=cost)

    async def _generate(self, wanted: TextRequest, generation: Generation) -> str | ServiceError:
        """Return the reason why the text ended, or the error."""
        try:
            return await self.model.generate(wanted, generation)
        except ServiceError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the border: the model may raise what it likes
            _log.warning("model failed", error=str(error), id=wanted.id)
            return ModelFailed("the model failed on this request")
        finally:
            generation.stop()  # where this task was cancelled, the model must end too

    def _stop(self, chosen: Callable[[Job[TextRequest]], bool]) -> None:
        for job, generation in self._running.items():
            if chosen(job):
                generation.stop()


async def _send(job: Job[TextRequest], generation: Generation) -> tuple[bytes, bytes]:
    """Hand an answer on as it comes; return what is left of it, and of its reasoning."""
    left, reasoned = bytearray(), bytearray()
    async for piece, reasoning in generation.pieces():
        if not job.in_parts:
            left += piece
            reasoned += reasoning
        elif not await job.session.send_part(
            Answer(job.id, response=job.request.answer(piece, reasoning), more=True)
        ):
            generation.stop()
    return bytes(left), bytes(reasoned)

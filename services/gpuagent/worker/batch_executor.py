"""The worker's core for networks that answer a batch at once: forms batches and runs them."""

from collections.abc import Sequence

from services.gpuagent.worker.core.batcher import Pending
from services.gpuagent.worker.gpu_slot import Batch, Ran, WorkerDevice
from services.gpuagent.worker.intake import Intake, Job
from services.gpuagent.worker.model_port import Answers, Model, ModelFailed, R, Text
from services.gpuagent.worker.session import Answer
from services.kit.errors import ServiceError
from services.kit.telemetry import logs

_log = logs.get("worker")


class BatchExecutor(Intake[R, WorkerDevice, Model[R]]):
    """Runs the work of all streams on one device, batch by batch."""

    async def run(self) -> None:
        """Run batches until cancelled."""
        while True:
            await self._execute(await self._next())
            self._divide(self.clock.monotonic())

    async def _execute(self, batch: Sequence[Pending[Job[R]]]) -> None:
        """Run a batch; if it fails, each request alone, so that only the culprit fails."""
        try:
            answers = await self._attempt(batch)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no base class
            if len(batch) == 1:
                job = batch[0].work
                _log.warning("model failed", error=str(error), id=job.request.id)
                failed = ModelFailed("the model failed on this request")
                self._end(job.session, Answer(job.id, failed))
                return
            for pending in batch:
                if self._to_start(pending):
                    await self._execute((pending,))
        else:
            for pending, answer in zip(batch, answers, strict=True):
                self._done(pending, answer)

    async def _attempt(self, batch: Sequence[Pending[Job[R]]]) -> list[Answer]:
        size = Batch(
            items=sum(pending.items for pending in batch),
            requests=len(batch),
            arrived_s=max(pending.arrived_s for pending in batch),
        )
        requests = [pending.work.request for pending in batch]

        async def send(place: int, part: bytes) -> bool:
            job = batch[place].work
            return await job.session.send_part(Answer(job.id, response=part, more=True))

        ran = await self.device.run(size, lambda: self.model.compute(requests, send))
        return [
            _answer(pending, outcome, ran, size.items)
            for pending, outcome in zip(batch, ran.outputs(), strict=True)
        ]


def _answer(
    pending: Pending[Job[R]], outcome: bytes | Text | ServiceError, ran: Ran[Answers], items: int
) -> Answer:
    usage = None
    if isinstance(outcome, Text):
        usage = outcome.tokens.usage(pending.work.came_s)
        outcome = outcome.response
    cost = ran.cost(pending.arrived_s, pending.items, items, usage)
    return Answer.of(pending.work.id, outcome, cost)

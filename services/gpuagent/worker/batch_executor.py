"""The worker's core for networks that answer a batch at once: forms batches and runs them."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from services.gpuagent.worker.gpu_slot import Batch, WorkerDevice
from services.gpuagent.worker.intake import Intake, Job
from services.gpuagent.worker.model_port import Model, ModelFailed, R, Text
from services.gpuagent.worker.session import Answer
from services.kit.errors import ServiceError
from services.kit.telemetry import logs

_log = logs.get("worker")

_ITEMS: Final = attrgetter("items")
_REQUEST: Final = attrgetter("request")


class BatchExecutor(Intake[R, WorkerDevice, Model[R]]):
    """Runs the work of all streams on one device, batch by batch."""

    async def run(self) -> None:
        """Run batches until cancelled."""
        while True:
            await self._execute(*await self._next())

    async def _execute(self, batch: Sequence[Job[R]], now_s: float) -> None:
        """Run a batch; if it fails, each request alone, so that only the culprit fails."""

        async def send(place: int, part: bytes) -> bool:
            job = batch[place]
            return await job.session.send_part(Answer(job.id, response=part, more=True))

        items = sum(map(_ITEMS, batch))
        computing = self.model.compute(list(map(_REQUEST, batch)), send)
        try:
            size = Batch(items, len(batch), batch[-1].arrived_s)
            ran = await self.device.run(size, computing, now_s)
            outcomes = list(ran.outputs)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no base class
            if len(batch) == 1:
                self._fail(batch[0], error)
                return
            for job in batch:
                if self._to_start(job):
                    await self._execute((job,), self.clock.monotonic())
            return
        now_s = self.clock.monotonic()
        for job, outcome in zip(batch, outcomes, strict=True):
            usage = None
            if isinstance(outcome, Text):
                usage, outcome = outcome.tokens.usage(job.came_s), outcome.response  # noqa: PLW2901
            cost = ran.cost(job.arrived_s, job.items, items, usage)
            if isinstance(outcome, ServiceError):
                answer = Answer(job.id, outcome, cost=cost)
            else:
                answer = Answer(job.id, response=outcome, cost=cost)
            self._done(job, answer, now_s)

    def _fail(self, job: Job[Any], error: Exception) -> None:
        _log.warning("model failed", error=str(error), id=job.request.id)
        failed = ModelFailed("the model failed on this request")
        self._end(job.session, Answer(job.id, failed), self.clock.monotonic())

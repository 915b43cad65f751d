"""Worker process of a segment in virtual time, with the batches and times of the real one.

It replaces asyncio, ONNX Runtime and the clock of `services.gpuagent.worker` by virtual time: the
same batcher forms the batches, and the same table gives their costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simpy import Event

from services.gpuagent.core.batch_costs import Costs
from services.gpuagent.worker.core.batcher import Batcher, Queued
from services.kit.errors import DeadlineExceeded
from services.kit.request_cost import Cost
from services.router.core.model import InstanceId, Request
from services.router.core.worker_port import Hello, Result
from services.simulator.device import Device, Ledger
from services.simulator.text_worker import Results
from services.simulator.timeline import Timeline, Waiting

_ONE_KIND = "one"
"""All requests for a model have the same shape here: they may share a batch."""

_RESPONSE = b"response"


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting(Queued):
    """A request that waits for a batch. Attributes: number."""

    number: int


@dataclass(frozen=True, slots=True)
class Job:
    """Job of a worker.

    Attributes:
        instance: Its identity in the routing table.
        model: Name of its model.
        batch_size: Largest batch.
        costs: Costs of batches.
    """

    instance: InstanceId
    model: str
    batch_size: int
    costs: Costs


class Worker:
    """A worker process.

    Attributes:
        job: Its job.
        device: The GPU it is on.
        ledger: Its energy account.
        peers: All workers of its segment, itself included; set by the node that starts them.
    """

    def __init__(
        self, job: Job, device: Device, timeline: Timeline, results: Results, link_s: float
    ) -> None:
        self.job = job
        self.device = device
        self.ledger = Ledger()
        self.peers: Sequence[Worker] = (self,)
        self._time = timeline
        self._results = results
        self._link_s = link_s
        self._batcher: Batcher[_Waiting] = Batcher(job.batch_size, bound=2 * job.batch_size)
        self._work: Event | None = None  # event that it waits for

    @property
    def model(self) -> str:
        """Name of the model that the worker serves."""
        return self.job.model

    @property
    def hello(self) -> Hello:
        """Its message to a router that connects."""
        return Hello(self.job.batch_size, b"", in_batches=self.job.batch_size > 1)

    def deliver(self, request: Request) -> None:
        """Queue a request; the batcher decides when it runs."""
        self._batcher.add(_Waiting(_ONE_KIND, 1, request.deadline_s, request.number))
        if self._work is not None:
            self._work.succeed()
            self._work = None

    def withdraw(self, number: int) -> None:
        """Drop a request whose caller has gone, unless it is already in a batch."""
        dropped = self._batcher.remove(lambda waiting: waiting.number == number)
        if dropped:
            self._answer([number], None)

    def clock_changes(self) -> None:
        """Prepare for a change of the GPU's clock: the next batch runs at the new one."""

    def run(self) -> Waiting:
        """Run batches for ever."""
        while True:
            chosen = self._batcher.take(self._time.now_s)
            if chosen.expired:
                self._answer([waiting.number for waiting in chosen.expired], None)
            if chosen.batch:
                yield from self._execute([waiting.number for waiting in chosen.batch])
            else:
                self._work = self._time.env.event()
                yield self._work
                yield from self._time.wait(self._link_s)

    def _execute(self, numbers: Sequence[int]) -> Waiting:
        busy = 1 + sum(other.ledger.busy for other in self.peers if other is not self)
        cost = self.job.costs.at(len(numbers), busy, self.device.clock_ratio)
        self.ledger.begin(self._time.now_s, cost.power_w, cost.energy_j)
        yield from self._time.wait(cost.latency_s)
        self.ledger.end(self._time.now_s, len(numbers))
        used = Cost(cost.energy_j / len(numbers), 0.0, "model", 0.0, cost.latency_s, len(numbers))
        self._answer(numbers, used)

    def _answer(self, numbers: Sequence[int], cost: Cost | None) -> None:
        """Send an answer in the background; the next batch does not wait for it.

        Args:
            numbers: Numbers of the requests.
            cost: Cost of each; None: they expired before they began.
        """
        late = DeadlineExceeded.status if cost is None else ""
        results = [Result(each, late, response=_RESPONSE, cost=cost) for each in numbers]
        sent = self._time.env.timeout(self._link_s)
        sent.callbacks.append(lambda _: self._results(self.job.instance, results))

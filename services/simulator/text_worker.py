"""Worker of a language model in virtual time: slots with continuous batching.

As a server of the OpenAI API, or llama.cpp in the worker, does live: requests take slots in order
of arrival, prompts are computed in chunks, and every open answer has a token of each step. A slot
is free again after the step in which its request ended, was withdrawn, or expired.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from simpy import Event

from services.kit.errors import DeadlineExceeded, InvalidArgument
from services.kit.request_cost import Cost, Usage
from services.router.core.model import InstanceId, Request
from services.router.core.worker_port import Hello, Result
from services.simulator.continuous_batching import Replica, StepCosts, Text
from services.simulator.device import Device, Ledger
from services.simulator.timeline import ROUNDING_S, Timeline, Waiting

LengthsOf = Callable[[int], tuple[int, int]]
"""Returns the tokens of a request's prompt and of its answer, by the request's number."""

Results = Callable[[InstanceId, Sequence[Result]], None]
"""Takes a worker's results."""

_RESPONSE = b"response"


@dataclass(frozen=True, slots=True)
class TextJob:
    """Job of a worker.

    Attributes:
        instance: Its identity in the routing table.
        model: Name of its model.
        slots: Number of answers generated at a time.
        costs: Costs of steps.
        kv_tokens: Tokens of context that fit.
        context_tokens: Most tokens of a prompt and its answer; None: no limit.
    """

    instance: InstanceId
    model: str
    slots: int
    costs: StepCosts
    kv_tokens: int
    context_tokens: int | None = None


class TextWorker:
    """A worker process.

    Attributes:
        job: Its job.
        device: The GPU it is on.
        peers: All workers of its segment, itself included; set by the node that starts them.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # one argument per collaborator, all made in nodes.py
        self,
        job: TextJob,
        device: Device,
        timeline: Timeline,
        results: Results,
        lengths: LengthsOf,
        link_s: float,
    ) -> None:
        self.job = job
        self.device = device
        self.peers: Sequence[TextWorker] = (self,)
        self._time = timeline
        self._results = results
        self._lengths = lengths
        self._link_s = link_s
        self._replica = Replica(
            job.costs,
            lambda _, __: (device.clock_ratio, inf),
            job.slots,
            job.kv_tokens,
            beside=self._beside,
        )
        self._texts: dict[int, Text] = {}  # open ones
        self._by_arrival: deque[Text] = deque()
        self._gone: list[Text] = []  # to drop after the present step
        self._answered = 0
        self._wake: Event | None = None  # event that it waits for

    @property
    def model(self) -> str:
        """Name of the model that the worker serves."""
        return self.job.model

    @property
    def ledger(self) -> Ledger:
        """Its current energy account; a batch is a step."""
        replica = self._replica
        replica.catch_up(self._time.now_s)
        account = Ledger(self._answered, replica.steps, replica.active_j, replica.busy_s)
        if replica.left:
            time_s, energy_j = replica.present
            account.begin(replica.began_s, energy_j / time_s, energy_j)
        return account

    @property
    def hello(self) -> Hello:
        """Its message to a router that connects; it has a KV cache, as in vLLM and SGLang."""
        slots = self.job.slots
        return Hello(slots, b"", kv_tokens_per_credit=self.job.kv_tokens // slots)

    @property
    def answering(self) -> int:
        """Number of answers that are generated now."""
        return len(self._replica.open)

    def deliver(self, request: Request) -> None:
        """Queue a request; it begins once a slot, and memory for its context, is free."""
        prompt, answer = self._lengths(request.number)
        limit = self.job.context_tokens
        if limit is not None:
            if prompt >= limit:
                text = f"{prompt} tokens leave no room in a context of {limit}"
                self._send([Result(request.number, InvalidArgument.status, text)])
                return
            answer = min(answer, limit - prompt)
        text_ = Text(
            request.arrived_s,
            prompt,
            answer,
            number=request.number,
            deadline_s=request.deadline_s,
        )
        self._texts[text_.number] = text_
        self._by_arrival.append(text_)
        self._replica.add(text_, self._time.now_s)
        self._rouse()

    def withdraw(self, number: int) -> None:
        """Drop a request whose caller has gone; its slot is free after the current step."""
        text = self._texts.pop(number, None)
        if text is not None:
            self._gone.append(text)
            self.cut()

    def clock_changes(self) -> None:
        """Prepare for a change of the GPU's clock: the next step runs at the new one."""
        self.cut()

    def cut(self) -> None:
        """End the run with the current step."""
        if self._replica.left:
            self._replica.cut(self._time.now_s)
            self._rouse()

    def run(self) -> Waiting:
        """Run steps for ever."""
        replica = self._replica
        while True:
            if self._by_arrival or self._gone:
                self._drop()
            if replica.open or replica.waiting:
                yield from self._step()
            else:
                self._wake = self._time.env.event()
                yield self._wake
                yield from self._time.wait(self._link_s)

    def _step(self) -> Waiting:
        replica = self._replica
        replica.begin(self._time.now_s)
        replica.cut(self._by_arrival[0].deadline_s)
        if replica.left > 1:
            yield from self._until_last()
        yield from self._time.wait(replica.ends_s - self._time.now_s)
        first, ended = replica.end(self._time.now_s)
        if not (first or ended):
            return
        self._cut_peers()
        self._answered += len(ended)
        for text in ended:
            self._texts.pop(text.number, None)
        self._gone = [each for each in self._gone if not each.ended_s]
        parts = [Result(each.number, more=True) for each in first if not each.ended_s]
        if parts or ended:
            self._send([*parts, *map(self._result, ended)])

    def _until_last(self) -> Waiting:
        """Wait for the run's end, or until it is cut and its last step runs."""
        replica, time = self._replica, self._time
        while replica.left > 1 and (left_s := replica.ends_s - time.now_s) > ROUNDING_S:
            self._wake = time.env.event()
            yield self._wake | time.env.timeout(left_s)
            self._wake = None
            if not time.going:
                yield time.resumed

    def _rouse(self) -> None:
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def _cut_peers(self) -> None:
        """Cut the runs of other workers of its segment: their steps depend on its answers."""
        for other in self.peers:
            if other is not self:
                other.cut()

    def _drop(self) -> None:
        """Drop withdrawn and expired requests; none is in a step now."""
        while self._by_arrival and (
            self._by_arrival[0].number not in self._texts
            or self._by_arrival[0].deadline_s <= self._time.now_s
        ):
            text = self._by_arrival.popleft()
            if self._texts.pop(text.number, None) is not None:
                self._gone.append(text)
        for text in self._gone:
            self._replica.drop(text)
        if self._gone:
            self._cut_peers()
            late = DeadlineExceeded.status
            self._send([Result(each.number, late, cost=self._cost(each)) for each in self._gone])
            self._gone = []

    def _result(self, text: Text) -> Result:
        return Result(text.number, response=_RESPONSE, cost=self._cost(text))

    def _cost(self, text: Text) -> Cost:
        """Return the cost of a request that has ended, or was dropped."""
        now_s = self._time.now_s
        done = text.output_tokens if text.ended_s else 0
        first_s = text.ttft_s + self._link_s if done else 0.0
        token_s = text.tpot_s if done > 1 else 0.0
        usage = Usage(text.input_tokens, done, first_s, token_s)
        return Cost(text.energy_j, 0.0, "model", 0.0, now_s - text.arrived_s, 1, usage=usage)

    def _beside(self) -> int:
        return sum(other.answering for other in self.peers if other is not self)

    def _send(self, results: Sequence[Result]) -> None:
        """Send results in the background; the next step does not wait for it."""
        sent = self._time.env.timeout(self._link_s)
        sent.callbacks.append(lambda _: self._results(self.job.instance, results))

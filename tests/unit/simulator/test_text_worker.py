"""Runs of steps give what their steps give one by one, whatever comes in between."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Environment

from services.kit.config import MeasuredSteps
from services.kit.profiles.core.language import CHUNK_TOKENS, LanguageProfile
from services.router.core.model import InstanceId, Request
from services.router.core.worker_port import Result
from services.simulator.continuous_batching import Replica, StepCosts, Text
from services.simulator.device import Device, gpu_type
from services.simulator.text_worker import TextJob, TextWorker
from services.simulator.timeline import Timeline, Waiting
from tests.support.examples import examples

H100 = gpu_type("h100-80gb")
WHOLE = H100.shape(max(H100.geometry.kinds, key=lambda kind: kind.sm_count))
MEASURED = MeasuredSteps(
    gpu=WHOLE.gpu, slice=WHOLE.profile, fixed_s=0.008, sequence_s=5e-5, context_token_s=4e-8,
    prompt_token_s=3e-5, fixed_j=2.0, sequence_j=0.02, context_token_j=1e-5, prompt_token_j=0.01,
)  # fmt: skip
COSTS = (
    StepCosts(LanguageProfile.of(8.0), WHOLE),
    StepCosts(LanguageProfile.of(8.0, measured=(MEASURED,)), WHOLE, slowdown=1.3),
)
CLOCKS_MHZ = (0, 1190, 1590)

MS = st.integers(0, 6000)
TEXTS = st.tuples(MS, st.integers(1, 1200), st.integers(1, 300), MS | st.none(), st.integers(0, 2))


class Event(NamedTuple):
    """An event of a worker.

    Attributes:
        at_s: Requests' time; no two events have the same.
        what: "arrival" or "withdrawal" of a text, "clock" of the GPU, "reading" of the account.
        worker: Index of the worker.
        text: Number of the text.
        clock_mhz: New clock of the GPU, MHz.
    """

    at_s: float
    what: str
    worker: int = 0
    text: int = 0
    clock_mhz: int = 0


class Account(NamedTuple):
    """Totals of a worker's account, with the energy of the present step's part."""

    requests: int
    steps: int
    active_j: float
    busy_s: float
    up_to_now_j: float


Sent = dict[tuple[int, str], tuple[float, float]]
"""When a text's first and last results were sent, and its energy, by number and kind."""


@dataclass(frozen=True)
class Scenario:
    """Workers of one segment, and what happens to them.

    Attributes:
        costs, workers, slots, kv_tokens: The workers' parameters.
        patience_s: Time that a caller waits, s.
        lengths: Tokens of each text's prompt and answer.
        events: In order.
    """

    costs: StepCosts
    workers: int
    slots: int
    kv_tokens: int
    patience_s: float
    lengths: Sequence[tuple[int, int]]
    events: Sequence[Event]


@st.composite
def scenarios(draw: Callable[..., Any]) -> Scenario:
    workers = draw(st.sampled_from((1, 1, 2, 3)))
    ticks = count()

    def moment(ms: int) -> float:
        return ms / 1e3 + 1.37e-5 * next(ticks)

    events, lengths = [], []
    for number, text in enumerate(draw(st.lists(TEXTS, min_size=1, max_size=12))):
        ms, prompt, answer, withdrawn_ms, worker = text
        lengths.append((prompt, answer))
        events.append(Event(moment(ms), "arrival", worker % workers, number))
        if withdrawn_ms is not None:
            at_s = moment(ms + withdrawn_ms)
            events.append(Event(at_s, "withdrawal", worker % workers, number))
    for ms, clock_mhz in draw(st.lists(st.tuples(MS, st.sampled_from(CLOCKS_MHZ)), max_size=5)):
        events.append(Event(moment(ms), "clock", clock_mhz=clock_mhz))
    events += [Event(moment(ms), "reading") for ms in draw(st.lists(MS, max_size=8))]
    return Scenario(
        costs=draw(st.sampled_from(COSTS)),
        workers=workers,
        slots=draw(st.integers(1, 5)),
        kv_tokens=draw(st.sampled_from((1200, 2000, 400_000))),
        patience_s=draw(st.sampled_from((inf, 3.00001))),
        lengths=lengths,
        events=sorted(events),
    )


# ---- step by step -------------------------------------------------------------------------------


@dataclass
class Open:
    """A text. Attributes: text, left (tokens of its prompt to take in), tokens (that came)."""

    text: Text
    left: int
    tokens: int = 0


@dataclass
class Definition:
    """A worker by definition: each step is begun and ended for itself.

    Attributes:
        past: Begin, end, energy and number of ended texts of each step.
    """

    scenario: Scenario
    waiting: list[Open] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)
    begun: list[Open] = field(default_factory=list)
    ends_s: float = inf
    withdrawn: set[int] = field(default_factory=set)
    past: list[tuple[float, float, float, int]] = field(default_factory=list)
    sent: Sent = field(default_factory=dict)

    def begin(self, now_s: float, clock: float, others: int) -> None:
        left, taken = CHUNK_TOKENS, []
        while self.waiting and left and self._fits(self.waiting[0].text):
            first = self.waiting[0]
            taken.append((first, min(first.left, left)))
            first.left -= taken[-1][1]
            left -= taken[-1][1]
            if not first.left:
                self.begun.append(self.waiting.pop(0))
        own, prompt = len(self.open), CHUNK_TOKENS - left
        context = sum(each.text.input_tokens + each.tokens for each in self.open) / max(own, 1)
        time_s, energy_j = self.scenario.costs.step(clock, own + others, context, prompt)
        if prompt and others:  # the others count what their answers take meanwhile
            alone_s, alone_j = self.scenario.costs.step(clock, own + others, context, 0)
            energy_j -= alone_j / alone_s * time_s * others / (own + others)
            energy_j = max(energy_j, 0.0)
        elif others:
            energy_j *= own / (own + others)
        for each, tokens in [*taken, *((each, 1) for each in self.open)]:
            each.text.energy_j += energy_j * tokens / (own + prompt)
        self.ends_s = now_s + time_s
        self.past.append((now_s, self.ends_s, energy_j, 0))

    def end(self) -> None:
        now_s, self.ends_s = self.ends_s, inf
        self.open += self.begun
        for each in self.open:
            each.tokens += 1
        for each in self.begun:
            if each.text.output_tokens > 1:
                self.sent[each.text.number, "first"] = now_s, 0.0
        self.begun = []
        ended = [each for each in self.open if each.tokens == each.text.output_tokens]
        self.past[-1] = (*self.past[-1][:3], len(ended))
        for each in ended:
            self._close(each, now_s, "answered")
        for each in [*self.open, *self.waiting]:
            if each.text.number in self.withdrawn or each.text.deadline_s <= now_s:
                self._close(each, now_s, "dropped")

    def account(self, now_s: float) -> Account:
        past = [each for each in self.past if each[1] <= now_s]
        active_j = sum(energy_j for _, _, energy_j, _ in past)
        busy_s = sum(ended_s - began_s for began_s, ended_s, _, _ in past)
        present_j = 0.0
        for began_s, ends_s, energy_j, _ in self.past:
            if began_s <= now_s < ends_s:
                present_j = energy_j * (now_s - began_s) / (ends_s - began_s)
        requests = sum(each[3] for each in past)
        return Account(requests, len(past), active_j, busy_s, active_j + present_j)

    def _close(self, each: Open, now_s: float, kind: str) -> None:
        (self.open if each in self.open else self.waiting).remove(each)
        self.sent[each.text.number, kind] = now_s, each.text.energy_j

    def _fits(self, text: Text) -> bool:
        held = [*self.open, *self.begun]
        tokens = text.tokens + sum(each.text.tokens for each in held)
        return not held or (len(held) < self.scenario.slots and tokens <= self.scenario.kv_tokens)


def defined(scenario: Scenario) -> tuple[Sent, list[Account]]:
    """Return what was sent, and every reading of every worker, by definition."""
    workers = [Definition(scenario) for _ in range(scenario.workers)]
    events, accounts, device = list(scenario.events), [], Device("", "", H100)
    while True:
        worker = min(workers, key=lambda each: each.ends_s)
        now_s = min(worker.ends_s, events[0].at_s if events else inf)
        if now_s == inf:
            break
        if now_s < worker.ends_s:
            event = events.pop(0)
            worker = workers[event.worker]
            if event.what == "clock":
                device.lock_clock(event.clock_mhz)
            elif event.what == "reading":
                accounts += [each.account(now_s) for each in workers]
            elif event.what == "withdrawal":
                worker.withdrawn.add(event.text)
            else:
                text = Text(now_s, *scenario.lengths[event.text], number=event.text)
                text.deadline_s = now_s + scenario.patience_s
                worker.waiting.append(Open(text, text.input_tokens))
        else:
            worker.end()
        if worker.ends_s == inf and (worker.open or worker.waiting):
            others = sum(len(each.open) for each in workers if each is not worker)
            worker.begin(now_s, device.clock_ratio, others)
    return {key: at for each in workers for key, at in each.sent.items()}, accounts


# ---- the simulator's ----------------------------------------------------------------------------


class Simulated:
    """The simulator's workers in the same scenario.

    Args:
        scenario: The parameters and events.
        pause: Start and length of a pause of requests' time, s.
    """

    def __init__(self, scenario: Scenario, pause: tuple[float, float]) -> None:
        self.sent: Sent = {}
        self.accounts: list[Account] = []
        self._scenario = scenario
        self._time = time = Timeline(Environment())
        self._device = Device("", "", H100)
        self._workers = [self._worker(number) for number in range(scenario.workers)]
        for worker in self._workers:
            worker.peers = self._workers
            time.env.process(worker.run())
        self._device.join(self._workers, 0.0)
        time.env.process(self._events())
        time.env.process(self._pause(*pause))
        time.env.run()

    def _worker(self, number: int) -> TextWorker:
        scenario = self._scenario
        job = TextJob(
            InstanceId(str(number), ""), "m", scenario.slots, scenario.costs, scenario.kv_tokens
        )
        lengths = scenario.lengths.__getitem__
        return TextWorker(job, self._device, self._time, self._results, lengths, 0.0)

    def _results(self, _: InstanceId, results: Sequence[Result]) -> None:
        for each in results:
            kind = "first" if each.more else "dropped" if each.status else "answered"
            energy_j = each.cost.energy_j if each.cost else 0.0
            self.sent[each.number, kind] = self._time.now_s, energy_j

    def _events(self) -> Waiting:
        for event in self._scenario.events:
            yield from self._time.wait(event.at_s - self._time.now_s)
            self._happen(event, self._workers[event.worker])

    def _happen(self, event: Event, worker: TextWorker) -> None:
        now_s = self._time.now_s
        match event.what:
            case "clock":
                self._device.lock_clock(event.clock_mhz)
            case "withdrawal":
                worker.withdraw(event.text)
            case "arrival":
                deadline_s = now_s + self._scenario.patience_s
                worker.deliver(Request(event.text, "m", b"", now_s, deadline_s))
            case "reading":
                for each in self._workers:
                    read = each.ledger
                    energy_j = read.active_j, read.busy_s, read.energy_at(now_s)
                    self.accounts.append(Account(read.requests, read.batches, *energy_j))

    def _pause(self, at_s: float, span_s: float) -> Waiting:
        yield self._time.env.timeout(at_s)
        self._time.stop()
        yield self._time.env.timeout(span_s)
        self._time.go()


@examples(2)
@given(scenarios(), st.integers(0, 8000), st.sampled_from((0.01, 5.0)))
def test_runs_are_their_steps_one_by_one(scenario: Scenario, pause_ms: int, pause_s: float) -> None:
    """Arrivals, withdrawals, deadlines, clocks, shared GPUs, time that stands still, readings."""
    found = Simulated(scenario, (pause_ms / 1e3 + 7.7e-6, pause_s))
    sent, accounts = defined(scenario)

    assert sorted(found.sent) == sorted(sent)
    for key, result in found.sent.items():
        assert result == pytest.approx(sent[key], rel=1e-7, abs=1e-7), key
    for account, expected in zip(found.accounts, accounts, strict=True):
        assert account == pytest.approx(expected, rel=1e-7, abs=1e-7)


@given(
    st.sampled_from(COSTS),
    st.sampled_from((0.6, 1.0)),
    st.integers(1, 300),
    st.integers(1, 9000),
    st.integers(1, 3000),
)
def test_the_energy_of_steps_together_is_their_sum(
    costs: StepCosts, clock: float, answers: int, context: int, steps: int
) -> None:
    """Power may reach the GPU's limit on the way."""
    one_by_one = sum(
        costs.step(clock, answers, context + number, 0).energy_j for number in range(steps)
    )

    assert costs.energy_j(clock, answers, context, steps) == pytest.approx(one_by_one, rel=1e-9)


def test_a_long_answer_is_one_run() -> None:
    """The next prompt is another run; one that does not fit beside it is none until its end."""
    replica = Replica(COSTS[0], lambda _, __: (1.0, inf), 4, 3000)
    for tokens in ((100, 2500), (1000, 5)):
        replica.add(Text(0.0, *tokens), 0.0)
    ends: list[float] = []
    while replica.requests:
        replica.begin(ends[-1] if ends else 0.0)
        ends.append(replica.ends_s)
        replica.end(ends[-1])

    assert replica.steps == 1 + 2499 + 2 + 4
    assert len(ends) == 5

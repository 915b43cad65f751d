"""Replicas of a language model in virtual time behind a dispatcher: continuous batching by steps.

Each replica computes prompts in order of arrival, whatever their class, in chunks beside the
answers' tokens, as servers of the OpenAI API do by default. Step times are those of Llama-3.1-8B on
an H100 by the product's profile.
"""

import heapq
import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from services.kit.request_cost import Cost, Usage
from services.router.core.dispatch.decisions import Decision, Fail, Reconsider, Reply, Send
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import Instance, Limits, ModelRoutes, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Hello

FIXED_S, SEQUENCE_S, CONTEXT_TOKEN_S, PROMPT_TOKEN_S = 7.83e-3, 6.27e-5, 3.9e-8, 2.86e-5
CHUNK = 512
SLOTS = 256
ROUTES = ModelRoutes(
    "chat",
    slo_latency_s=30.0,
    slo_percentile=99,
    instance_choice="least_expected_completion",
    slo_first_token_s=1.0,
    slo_token_s=0.03,
)


@dataclass(eq=False)
class Text:
    """A request at a replica. Attributes: pending, prompt, tokens, unread, made, first_s."""

    pending: PendingRequest
    prompt: int
    tokens: int
    unread: int = 0
    made: int = 0
    first_s: float = 0.0


@dataclass(eq=False)
class Replica:
    """One server. Attributes: instance, busy (a step runs), reading, answering."""

    instance: Instance
    busy: bool = False
    reading: deque[Text] = field(default_factory=deque)
    answering: list[Text] = field(default_factory=list)

    def step_s(self) -> tuple[float, list[Text]]:
        """Return the time of the next step, and the texts whose prompts it completes."""
        left, begun = CHUNK, list[Text]()
        while self.reading and left:
            text = self.reading[0]
            taken = min(text.unread, left)
            text.unread -= taken
            left -= taken
            if not text.unread:
                begun.append(self.reading.popleft())
        context = sum(text.prompt + text.made for text in self.answering)
        step_s = FIXED_S + SEQUENCE_S * len(self.answering) + CONTEXT_TOKEN_S * context
        return step_s + PROMPT_TOKEN_S * (CHUNK - left), begun


@dataclass(frozen=True)
class Done:
    """An interactive answer's times, s. Attributes: first_s, token_s."""

    first_s: float
    token_s: float

    @property
    def in_time(self) -> bool:
        """Within both objectives."""
        return self.first_s <= ROUTES.slo_first_token_s and self.token_s <= ROUTES.slo_token_s


class Fleet:
    """Runs requests through a dispatcher and its replicas until a time.

    Args:
        replicas: How many.
        backlog: Prompt and answer lengths of deferrable requests, which never end; None: none.
        supply: Deferrable requests that are queued or in flight at a time.
    """

    def __init__(
        self, replicas: int, *, backlog: Iterator[tuple[int, int]] | None, supply: int = 600
    ) -> None:
        instances = tuple(
            Instance(f"r{n}:1", f"r{n}", "chat", "8b", 1.0, 1 / replicas, SLOTS)
            for n in range(replicas)
        )
        self.core = Dispatcher(ROUTES, Limits())
        self.replicas = {each.id: Replica(each) for each in instances}
        self.now_s, self._numbers, self._order = 0.0, count(1), count()
        self._events: list[tuple[float, int, object]] = []
        self._lengths: dict[int, tuple[int, int]] = {}
        self.done: list[Done] = []
        self.lost = self.deferred = self.deferred_tokens = self.sent_while_waiting = 0
        self._backlog, self._supply = backlog, supply
        self.execute(self.core.swap(replace(ROUTES, instances=instances)))
        for each in instances:
            self.execute(self.core.up(each.id, Hello(SLOTS, b"", decoupled=True)))

    def offer(self, prompt: int, tokens: int, *, deferrable: bool = False) -> None:
        """Offer a request now."""
        number, until_s = next(self._numbers), self.now_s + (86_400.0 if deferrable else 60.0)
        request = Request(
            number, "chat", b"x" * (4 * prompt), self.now_s, until_s, deferrable=deferrable
        )
        self._lengths[number] = (prompt, tokens)
        self.execute(self.core.offer(PendingRequest(request, receiver=None)))

    def run(self, arrivals: Iterable[tuple[float, int, int]], until_s: float) -> None:
        """Run interactive arrivals (time, prompt, tokens) until a time."""
        for at_s, prompt, tokens in arrivals:
            self._at(at_s, (prompt, tokens))
        if self._backlog is not None:
            self._at(0.0, "supply")
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            match event:
                case (int(prompt), int(tokens)):
                    self.offer(prompt, tokens)
                case "supply":
                    self._supply_more()
                case Reconsider():
                    self.execute(self.core.reconsider(self.now_s))
                case (Replica() as replica, list(begun)):
                    self._step(replica, begun)

    def execute(self, decisions: Iterable[Decision]) -> None:
        """Do what the dispatcher decided."""
        for decision in decisions:
            match decision:
                case Send(instance, pending):
                    if pending.request.deferrable and self.core.queue_depth:
                        self.sent_while_waiting += 1
                    prompt, tokens = self._lengths.pop(pending.request.number)
                    replica = self.replicas[instance.id]
                    replica.reading.append(Text(pending, prompt, tokens, unread=prompt))
                    self._begin(replica)
                case Reconsider(_, at_s):
                    self._at(at_s, decision)
                case Fail(pending, _):
                    self.lost += not pending.request.deferrable
                case Reply() | _:
                    pass

    def _supply_more(self) -> None:
        assert self._backlog is not None
        filler = self.core.filler
        while len(filler.queue) + filler.in_flight < self._supply:
            self.offer(*next(self._backlog), deferrable=True)

    def _at(self, at_s: float, event: object) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), event))

    def _begin(self, replica: Replica) -> None:
        if not replica.busy and (replica.reading or replica.answering):
            replica.busy = True
            step_s, begun = replica.step_s()
            self._at(self.now_s + step_s, (replica, begun))

    def _step(self, replica: Replica, begun: list[Text]) -> None:
        """End a step: each answer has a token more."""
        for text in begun:
            text.first_s = self.now_s
            replica.answering.append(text)
        ended = []
        for text in replica.answering:
            text.made += 1
            if text.made >= text.tokens:
                ended.append(text)
            elif not text.pending.request.deferrable:
                self.core.part(replica.instance.id, text.pending.request.number, self.now_s)
        replica.answering = [text for text in replica.answering if text.made < text.tokens]
        replica.busy = False
        for text in ended:
            self._end(replica, text)
        self._begin(replica)

    def _end(self, replica: Replica, text: Text) -> None:
        request = text.pending.request
        token_s = (self.now_s - text.first_s) / max(text.tokens - 1, 1)
        first_s = text.first_s - request.arrived_s
        if request.deferrable:
            self.deferred += 1
            self.deferred_tokens += text.tokens
            token_s, first_s = (self.now_s - text.pending.assigned_s) / text.tokens, 0.0
        else:
            self.done.append(Done(first_s, token_s))
        cost = Cost(
            1.0, 0.0, "model", 0.0, 1.0, 1, 1, Usage(text.prompt, text.tokens, first_s, token_s)
        )
        number = request.number
        self.execute(self.core.result(replica.instance.id, number, now_s=self.now_s, cost=cost))
        if request.deferrable and self._backlog is not None:
            self._supply_more()

    @property
    def attainment(self) -> float:
        """Share of the interactive answers in time; those that were refused are none."""
        return sum(each.in_time for each in self.done) / max(len(self.done) + self.lost, 1)


def poisson(
    rate_rps: float, until_s: float, seed: int, *, since_s: float = 0.0
) -> list[tuple[float, int, int]]:
    """Requests as of Azure's conversations: arrival, prompt of 1155 tokens and answer of 211."""
    drawn, at_s, found = random.Random(seed), since_s, list[tuple[float, int, int]]()
    while (at_s := at_s + drawn.expovariate(rate_rps)) < until_s:
        found.append((at_s, *lengths(drawn)))
    return found


def lengths(drawn: random.Random, longer: int = 1) -> tuple[int, int]:
    """Return a prompt and an answer, tokens."""
    prompt = int(min(max(drawn.lognormvariate(6.7, 0.85), 16), 4000))
    answer = int(min(max(drawn.lognormvariate(4.9, 0.85), 8), 1000))
    return prompt, answer * longer


def waiting(seed: int, longer: int = 1) -> Iterator[tuple[int, int]]:
    """Deferrable requests of the same lengths, or with answers so many times as long."""
    drawn = random.Random(seed)
    while True:
        yield lengths(drawn, longer)

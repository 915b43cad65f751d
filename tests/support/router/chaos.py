"""Workers, agents and a planner that come and go around a real engine, in virtual time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from services.kit.config import InstanceChoice
from services.kit.errors import ServiceError
from services.kit.request_cost import Cost
from services.router.core.accounting.account import Account
from services.router.core.model import Instance, Limits, ModelRoutes, Request, RoutingTable
from services.router.core.model_registry import ModelRegistry
from services.router.core.queue.request_queue import ByteBudget
from services.router.core.wire import Head
from services.router.core.worker_port import Hello, Result
from services.router.runtime.decision_executor import DecisionExecutor
from services.router.runtime.engine import Engine
from tests.support.virtual_loop import LoopClock

MODELS = ("cats", "digits")
NODES = ("n0", "n1")
WORKERS_EACH, CREDITS = 3, 4  # per model and node
BATCH_S, FRAME_S, HELLO_S, RESTART_S = 0.02, 0.0005, 0.01, 0.2
SLO_S, DEADLINE_S, PATIENCE_S = 0.25, 2.0, 0.05
POISON = b"poison"
GRANT = Cost(1.0, 0.0, "model", queue_s=0.0, compute_s=BATCH_S, batch_size=1)


@dataclass
class Books:
    """Observations from outside the router, by request body.

    Attributes:
        ends: The ends of each request.
        answers: Number of answers to a request that reached the router.
        deaths: Workers that died of it.
        granted_j: Energy that workers granted in answers that reached the router.
        wrong: Answers that were another request's.
        late_sends: Requests given to a worker after their deadline.
    """

    ends: dict[bytes, list[str]] = field(default_factory=dict)
    answers: Counter[bytes] = field(default_factory=Counter)
    deaths: Counter[bytes] = field(default_factory=Counter)
    granted_j: float = 0.0
    wrong: int = 0
    late_sends: int = 0

    async def follow(self, body: bytes, patience_s: float | None, answer: Awaitable[bool]) -> None:
        """Write down how a request ends; `answer` returns whether its answer was right."""
        ends = self.ends.setdefault(body, [])
        try:
            async with asyncio.timeout(patience_s):
                right = await answer
        except ServiceError as error:
            ends.append(error.reason)
        except TimeoutError:
            ends.append("caller went")
        else:
            ends.append("answered")
            self.wrong += not right

    def outcomes(self) -> Counter[str]:
        """Return how many requests ended how."""
        return Counter(end for ends in self.ends.values() for end in ends)


class Worker:
    """A worker process, the way to it and the router's link: one after another, batch by batch."""

    def __init__(
        self, instance: Instance, listener: DecisionExecutor, agents: set[str], books: Books
    ) -> None:
        self.instance = instance
        self.up = False
        self._listener = listener
        self._agents = agents
        self._books = books
        self._life = 0
        self._outbox: list[Request] = []
        self._inside: list[Request] = []
        self._withdrawn: set[int] = set()
        self._busy = self._flushing = self._draining = False
        self._after(HELLO_S, self._hello)

    # ---- the router's side ---------------------------------------------------------------------

    def send(self, request: Request) -> None:
        now_s = asyncio.get_running_loop().time()
        self._books.late_sends += now_s > request.deadline_s
        self._outbox.append(request)
        if not self._flushing:
            self._flushing = True
            self._after(FRAME_S, self._flush)

    def withdraw(self, number: int) -> None:
        self._withdrawn.add(number)

    def close(self) -> None:
        assert not self._inside
        assert not self._outbox
        self._life += 1
        self.up = False

    # ---- what befalls it -----------------------------------------------------------------------

    def die(self) -> None:
        """Die with all it holds; its agent, where it lives, starts it again."""
        self._life += 1
        self.up = self._busy = self._flushing = self._draining = False
        unseen = {request.number for request in self._outbox}
        self._outbox, self._inside = [], []
        self._withdrawn.clear()
        self._after(RESTART_S, self._hello)
        self._listener.broken(self.instance, unseen)

    def drain(self) -> None:
        """Take no more work, end what is there, then come back as a new process."""
        if self.up and not self._draining:
            self._draining = True
            self._after(RESTART_S, self.die)  # first: on this notice, the router may close the link
            self._listener.draining(self.instance)

    def credit(self, credits_: int) -> None:
        if self.up:
            self._listener.credits(self.instance, credits_)

    # ---- inside --------------------------------------------------------------------------------

    def _after(self, delay_s: float, call: object) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._alive, self._life, call)

    def _alive(self, life: int, call: object) -> None:
        if life == self._life and callable(call):
            call()

    def _hello(self) -> None:
        if self.instance.zone not in self._agents:  # no agent starts it
            self._after(RESTART_S, self._hello)
            return
        self.up = True
        self._listener.hello(self.instance, Hello(CREDITS, self._metadata(), in_batches=True))

    def _flush(self) -> None:
        self._flushing = False
        self._inside += self._outbox
        self._outbox = []
        self._next_batch()

    def _next_batch(self) -> None:
        if self._busy or not self._inside:
            return
        self._busy = True
        self._after(BATCH_S, self._batch)

    def _batch(self) -> None:
        self._busy = False
        batch, self._inside = self._inside[:CREDITS], self._inside[CREDITS:]
        for request in batch:
            if self._poisonous(request.body) and request.number not in self._withdrawn:
                # A worker that drains is expected to go: the router counts no death.
                self._books.deaths[request.body] += not self._draining
                self.die()
                return
        self._listener.results(self.instance, [self._result(request) for request in batch])
        self._next_batch()

    def _poisonous(self, body: bytes) -> bool:
        return body.startswith(POISON)

    def _result(self, request: Request) -> Result:
        if request.number in self._withdrawn:
            self._withdrawn.discard(request.number)
            return Result(request.number, "CANCELLED", "not wanted")
        if self._draining:
            return Result(request.number, "UNAVAILABLE", "draining")
        self._books.answers[request.body] += 1
        self._books.granted_j += GRANT.energy_j
        return Result(request.number, response=self._answer(request.body), cost=replace(GRANT))

    def _answer(self, body: bytes) -> bytes:
        return answer_to(body)

    def _metadata(self) -> bytes:
        return b""


def answer_to(body: bytes) -> bytes:
    """Return what a worker answers, as the bytes of an unknown field."""
    return b"\x7a%b%b" % (bytes([len(body)]), body)


class World:
    """A router's engine and everything behind it.

    Attributes:
        engine: The real one.
        books: The record of the requests.
        workers: By endpoint, each that is dialled.
        agents: Nodes whose agents live.
    """

    def __init__(self, limits: Limits) -> None:
        self.books = Books()
        self.workers: dict[str, Worker] = {}
        self.agents = set(NODES)
        self.byte_budget = ByteBudget()
        registry = ModelRegistry(self.table(0, ()), dict.fromkeys(MODELS, limits), self.byte_budget)
        self.engine = Engine(
            registry,
            self._connect,
            open_account=lambda routes: Account(routes, lambda _: None),
            clock=LoopClock(),
            default_timeout_s=DEADLINE_S,
        )

    def _connect(self, instance: Instance, listener: DecisionExecutor) -> Worker:
        made = Worker(instance, listener, self.agents, self.books)
        self.workers[instance.endpoint] = made
        return made

    def table(
        self, revision: int, endpoints: Iterable[str], models: Iterable[str] = MODELS
    ) -> RoutingTable:
        """Return a table in which these endpoints share the load."""
        chosen = tuple(endpoints)
        routes = []
        for model in models:
            mine = [endpoint for endpoint in chosen if endpoint.startswith(model)]
            instances = tuple(_instance(endpoint, 1 / len(mine)) for endpoint in mine)
            choice: InstanceChoice = "shares" if model == MODELS[0] else "carbon_aware"
            routes.append(ModelRoutes(model, SLO_S, 95.0, choice, instances))
        return RoutingTable(revision, revision, tuple(routes))

    async def send(self, model: str, body: bytes, patience_s: float | None) -> None:
        """Send a request, and write down how it ends."""

        async def answered_right() -> bool:
            answer = await self.engine.infer(Head(model), body, None)
            return answer.body.startswith(answer_to(body))

        await self.books.follow(body, patience_s, answered_right())

    def left_over(self) -> Mapping[str, int]:
        """Return what the router still holds."""
        registry = self.engine.registry
        return {
            "callers": len(self.engine._callers),
            "waiting": sum(each.queue_depth for each in registry),
            "in_flight": sum(each.in_flight for each in registry),
            "bytes": self.byte_budget.used_bytes,
        }


ENDPOINTS = tuple(
    f"{model}-{node}-{number}:1"
    for model in MODELS
    for node in NODES
    for number in range(WORKERS_EACH)
)


def _instance(endpoint: str, share: float) -> Instance:
    model, node, _ = endpoint.split("-")
    return Instance(endpoint, endpoint, model, "v", 0.9, share, CREDITS, zone=node)


class Chaos:
    """Random faults in the world until `heal`."""

    def __init__(self, world: World, rng: Random, endpoints: tuple[str, ...] = ENDPOINTS) -> None:
        self._endpoints = endpoints
        self._world = world
        self._rng = rng
        self._revision = 0
        self._planner = True
        self.happened: Counter[str] = Counter()

    def plan(self, endpoints: Iterable[str], models: Iterable[str] = MODELS) -> None:
        """Send a new routing table, where the planner lives."""
        if self._planner:
            self._revision += 1
            self._world.engine.swap(self._world.table(self._revision, endpoints, models))

    async def reign(self, pause_s: float) -> None:
        """Cause trouble for ever."""
        kinds = {
            "worker killed": 6, "worker drains": 2, "credits": 2, "plan": 4, "model leaves": 1,
            "agent killed": 1, "node lost": 1, "planner killed": 1,
        }  # fmt: skip
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            (kind,) = self._rng.choices(list(kinds), list(kinds.values()))
            self.happened[kind] += 1
            self._cause(kind)

    def heal(self) -> None:
        """Bring back everything: all agents, workers and the planner."""
        self._world.agents.update(NODES)
        self._planner = True
        self.plan(self._endpoints)

    def _cause(self, kind: str) -> None:
        world, rng = self._world, self._rng
        up = [worker for worker in world.workers.values() if worker.up]
        loop, node = asyncio.get_running_loop(), rng.choice(NODES)
        match kind:
            case "worker killed" | "worker drains" | "credits" if up:
                self._befall(kind, rng.choice(up))
            case "plan":
                self.plan(rng.sample(self._endpoints, rng.randint(4, len(self._endpoints))))
            case "model leaves":
                self.plan(self._endpoints, rng.sample(MODELS, 1))
                loop.call_later(0.1, self.plan, self._endpoints)
            case "agent killed":  # its workers keep serving, and no agent starts those that die
                world.agents.discard(node)
                loop.call_later(1.0, world.agents.add, node)
            case "node lost":
                for worker in up:
                    if worker.up and worker.instance.zone == node:
                        worker.die()
            case "planner killed":
                self._planner = False
                loop.call_later(1.0, setattr, self, "_planner", True)

    def _befall(self, kind: str, victim: Worker) -> None:
        match kind:
            case "worker killed":
                victim.die()
            case "worker drains":
                victim.drain()
            case _:
                victim.credit(self._rng.randint(1, 2 * CREDITS))

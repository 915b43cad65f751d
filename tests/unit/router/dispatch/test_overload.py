"""The dispatcher in virtual time at more than its instances can do: what is answered is in time.

The world around it is a simulator of workers that form batches, no more; the dispatcher is the
real one.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

import pytest

from services.kit.config import Discipline
from services.kit.errors import ResourceExhausted
from services.router.core.dispatch.decisions import Decision, Fail, Reply, Send
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import Instance, InstanceId, Limits, ModelRoutes, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Hello
from tests.support.examples import trials

SLO_S = 0.1
ROUTES = ModelRoutes("m", SLO_S, 95, "shares")


@dataclass(frozen=True)
class Kind:
    """A worker: batches of up to `batch`, in `base_s + each_s` x items."""

    batch: int = 8
    base_s: float = 0.008
    each_s: float = 0.0015
    credits: int = 16
    share: float = 1.0

    @property
    def capacity_rps(self) -> float:
        return self.batch / (self.base_s + self.each_s * self.batch)


@dataclass
class Worker:
    kind: Kind
    waiting: list[int] = field(default_factory=list)
    busy: bool = False


class World:
    """Callers, workers and the time between them."""

    def __init__(
        self, kinds: Iterable[Kind], seed: int, routes: ModelRoutes = ROUTES, **limits: Any
    ) -> None:
        kinds = tuple(kinds)
        made = tuple(
            Instance(f"w{number}:1", f"s{number}", "m", "v", 0.9, kind.share, kind.credits)
            for number, kind in enumerate(kinds)
        )
        self.workers = {each.id: Worker(kind) for each, kind in zip(made, kinds, strict=True)}
        self.random = Random(seed)
        self.now_s = 0.0
        self.core = Dispatcher(routes, Limits(**limits))
        self.core.swap(replace(routes, instances=made))
        for each in made:
            self.core.up(each.id, Hello(each.credits, b""))
        self.in_time: Counter[str] = Counter()
        self.late: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.by_instance: Counter[str] = Counter()
        self.retry_after_s: list[float] = []
        self._events: list[tuple[float, int, InstanceId, list[int]]] = []
        self._numbers = count(1)

    @property
    def capacity_rps(self) -> float:
        return sum(worker.kind.capacity_rps for worker in self.workers.values())

    @property
    def answered(self) -> int:
        return self.in_time.total() + self.late.total()

    def run(self, load: float | Mapping[str, float], length_s: float) -> None:
        """Send requests at so many times the capacity, by client."""
        loads = load if isinstance(load, Mapping) else {"": load}
        streams = [
            self._poisson(load * self.capacity_rps, length_s, who) for who, load in loads.items()
        ]
        for at_s, client in heapq.merge(*streams):
            self._work(at_s)
            self.now_s = at_s
            self._send(client)

    def forget(self) -> None:
        for counts in (self.in_time, self.late, self.failed, self.by_instance):
            counts.clear()

    def _send(self, client: str) -> None:
        deadline_s = self.now_s + SLO_S
        request = Request(
            next(self._numbers), "m", b"", self.now_s, deadline_s, client=lambda: client
        )
        try:
            self._carry_out(self.core.offer(PendingRequest(request)))
        except ResourceExhausted as error:
            self.retry_after_s.append(error.retry_after_s or 0.0)
            self.failed[error.reason] += 1

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Send(to, sent):
                    self.workers[to.id].waiting.append(sent.request.number)
                    self._start(to.id)
                case Reply(by, done):
                    met = self.now_s <= done.request.deadline_s
                    (self.in_time if met else self.late)[done.client()] += 1
                    self.by_instance[by.segment_id] += 1
                case Fail(_, error):
                    self.failed[error.reason] += 1

    def _start(self, key: InstanceId) -> None:
        worker = self.workers[key]
        if worker.busy or not worker.waiting:
            return
        kind, worker.busy = worker.kind, True
        chosen, worker.waiting = worker.waiting[: kind.batch], worker.waiting[kind.batch :]
        done_s = self.now_s + kind.base_s + kind.each_s * len(chosen)
        heapq.heappush(self._events, (done_s, chosen[0], key, chosen))

    def _work(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, key, numbers = heapq.heappop(self._events)
            for number in numbers:  # one frame: what comes for it is one frame, too
                self._carry_out(self.core.result(key, number, now_s=self.now_s))
            self.workers[key].busy = False
            self._start(key)

    def _poisson(
        self, rate_rps: float, length_s: float, client: str
    ) -> Iterator[tuple[float, str]]:
        random = Random(f"{self.random.random()} {client}")
        at_s, end_s = self.now_s, self.now_s + length_s
        while (at_s := at_s + random.expovariate(rate_rps)) < end_s:
            yield at_s, client


FLEETS = {
    "one": [Kind()],
    "eight": [Kind()] * 8,
    "mixed": [Kind(), Kind(), Kind(batch=4, base_s=0.02, each_s=0.005, credits=8)],
    "one-by-one": [Kind(batch=1, base_s=0.004, each_s=0.001, credits=1)] * 3,
    "batches-of-half-the-slo": [Kind(batch=16, base_s=0.03, each_s=0.001, credits=16)],
}


@pytest.mark.parametrize("discipline", ["fcfs", "edf", "priority"])
@pytest.mark.parametrize("fleet", FLEETS)
def test_at_twice_the_capacity_nine_tenths_of_it_are_answered_in_time(
    fleet: str, discipline: Discipline
) -> None:
    """Deadline = SLO; Poisson arrivals. Without refusals none would be in time."""
    for seed in range(trials(0.1)):
        world = World(FLEETS[fleet], seed, replace(ROUTES, discipline=discipline))
        world.run(2.0, 0.3)
        world.forget()
        length_s = 2000 / world.capacity_rps

        world.run(2.0, length_s)

        goodput = world.in_time.total() / length_s / world.capacity_rps
        assert goodput >= 0.9
        assert world.late.total() <= 0.05 * world.answered
        assert min(world.retry_after_s) > 0, "every refusal says when to retry"


def test_below_the_capacity_hardly_anybody_is_refused() -> None:
    world = World(FLEETS["eight"], 0)

    world.run(0.8, 2.0)

    assert world.failed.total() <= 0.001 * world.in_time.total()
    assert not world.late


def test_when_the_overload_ends_everybody_is_served_again() -> None:
    """No estimate of bad times outlives them."""
    world = World(FLEETS["mixed"], 1)
    world.run(5.0, 1.0)
    assert world.failed
    world.run(0.5, 0.5)
    world.forget()

    world.run(0.5, 2.0)

    assert not world.failed
    assert not world.core.overload.active


@pytest.mark.parametrize(("fair", "least", "most"), [(True, 0.94, 1.1), (False, 0.0, 0.7)])
def test_a_client_that_sends_twice_the_capacity_does_not_crowd_out_a_modest_one(
    fair: bool, least: float, most: float
) -> None:
    """Under pressure clients take turns: one below its fair share gets all that it sends."""
    world = World(FLEETS["eight"], 3, fair_clients=fair)

    world.run({"greedy": 2.0, "modest": 0.2}, 2.0)

    sent = 0.2 * world.capacity_rps * 2.0
    assert least <= world.in_time["modest"] / sent <= most
    assert world.answered >= 0.9 * world.capacity_rps * 2.0, "fairness costs no capacity"


def test_while_overloaded_variants_without_a_share_serve_and_afterwards_no_more() -> None:
    """Accuracy is shed before requests: none is refused that a cheaper variant can serve."""
    standby = Kind(batch=8, base_s=0.002, each_s=0.001, share=0.0)
    world = World([Kind(), standby], 0)
    loads = 1.3 * Kind().capacity_rps / world.capacity_rps

    world.run(loads, 3.0)

    assert world.by_instance["s1"] > 0.1 * world.answered
    assert world.failed.total() < 0.02 * world.answered
    overload = world.core.overload.roll(world.core.now_s)
    assert overload.overloaded_s > 0
    world.run(0.01, 1.0)
    world.forget()
    world.run(0.1, 1.0)
    assert set(world.by_instance) == {"s0"}
    assert world.core.overload.roll(world.core.now_s).refused == 0

"""Machines that fall silent: in virtual time, by the dispatcher's own code."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from services.router.core.dispatch.decisions import Decision, Fail, Reply, Send, Withdraw
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.dispatch.silence import Silence
from services.router.core.instance_state import InstanceState
from services.router.core.model import InstanceId, Limits
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Hello
from tests.support.examples import examples
from tests.support.router.dispatching import ROUTES, dispatcher, instance, of, request

SLO_S = 0.4
RATE_RPS = 50.0
CUT_S, END_S = 3.0, 8.0
CREDITS = 2
ROUTED = replace(ROUTES, slo_latency_s=SLO_S)


@dataclass(eq=False)
class Machines:
    """Workers on machines, of which some answer nothing from a time on; one event after another.

    Attributes:
        core: The dispatcher.
        service_s: Time of one request; each worker runs one after another.
        silent: Workers that are cut off at `CUT_S`.
        latencies_s: Of each answered request.
        having: Workers that each open request is with.
        sends: Requests sent to workers, those sent again included.
        failed: Requests that failed.
    """

    core: Dispatcher
    service_s: float
    silent: frozenset[InstanceId]
    latencies_s: dict[int, float] = field(default_factory=dict)
    having: dict[int, set[InstanceId]] = field(default_factory=dict)
    sends: int = 0
    failed: int = 0
    now_s: float = 0.0
    _free_s: dict[InstanceId, float] = field(default_factory=dict)
    _events: list[tuple[float, int, str, object]] = field(default_factory=list)
    _ticks: "count[int]" = field(default_factory=count)

    def run(self, rate_rps: float, seed: int) -> int:
        """Offer a Poisson load; return how many requests."""
        draw, at_s, offered = Random(seed), 0.0, 0
        while (at_s := at_s + draw.expovariate(rate_rps)) < END_S:
            offered += 1
            self._later(at_s, "arrive", request(offered, arrived_s=at_s, deadline_s=at_s + 60))
        while self._events:
            self.now_s, _, kind, what = heapq.heappop(self._events)
            match kind, what:
                case "arrive", PendingRequest() as pending:
                    self._execute(self.core.offer(pending))
                    self._later(self.now_s + SLO_S, "hedge", pending)
                case "hedge", PendingRequest(ended=False) as pending:
                    self._execute(self.core.hedge(pending, self.now_s))
                    again_s = self.core.hedge_again_s(pending)
                    if again_s is not None and self.now_s < 2 * END_S:
                        self._later(self.now_s + again_s, "hedge", pending)
                case "finish", (InstanceId() as key, int() as number):
                    if not (key in self.silent and self.now_s >= CUT_S):
                        self._execute(self.core.result(key, number, now_s=self.now_s))
        return offered

    def _later(self, at_s: float, kind: str, what: object) -> None:
        heapq.heappush(self._events, (at_s, next(self._ticks), kind, what))

    def _execute(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Send(to, pending):
                    self.sends += 1
                    having = self.having.setdefault(pending.request.number, set())
                    having.add(to.id)
                    assert len(having) <= 2, "never with more than two"
                    end_s = max(self.now_s, self._free_s.get(to.id, 0.0)) + self.service_s
                    self._free_s[to.id] = end_s
                    self._later(end_s, "finish", (to.id, pending.request.number))
                case Withdraw(to, pending):
                    self.having[pending.request.number].discard(to.id)
                case Reply(_, pending):
                    number = pending.request.number
                    assert number not in self.latencies_s, "answered once"
                    self.latencies_s[number] = self.now_s - pending.request.arrived_s
                case Fail():
                    self.failed += 1


def machines(count_: int, each: int, silent: int, service_s: float) -> Machines:
    """Machines with as many workers each, of which some will be cut off."""
    instances = [instance(f"m{m}.w{w}") for m in range(count_) for w in range(each)]
    instances = [
        replace(each_, endpoint=f"m{i // each}:{i % each}") for i, each_ in enumerate(instances)
    ]
    core = Dispatcher(ROUTED, Limits(survives=True))
    core.swap(replace(ROUTED, instances=tuple(instances)))
    for each_ in instances:
        core.up(each_.id, Hello(CREDITS, b""))
    cut = frozenset(each_.id for each_ in instances[: silent * each])
    return Machines(core, service_s, cut)


@given(
    count_=st.integers(2, 4),
    each=st.integers(1, 6),
    load=st.floats(0.1, 0.7),
    seed=st.integers(0, 1000),
)
@examples(0.5)
def test_no_answer_takes_twice_the_objective_when_a_machine_is_cut_off(
    count_: int, each: int, load: float, seed: int
) -> None:
    """The others have room for the load; the requests that the machine holds go on to them."""
    service_s = min(load * (count_ - 1) * each / RATE_RPS, SLO_S / 4)
    world = machines(count_, each, 1, service_s)

    offered = world.run(RATE_RPS, seed)

    late = {number: s for number, s in world.latencies_s.items() if s > 2 * SLO_S}
    assert len(world.latencies_s) == offered
    assert not late
    assert world.sends <= 1.1 * offered + 100


@given(
    load=st.floats(1.1, 4.0),
    silent=st.integers(0, 1),
    seed=st.integers(0, 1000),
)
@examples(0.1)
def test_overload_is_not_amplified(load: float, silent: int, seed: int) -> None:
    """Workers that answer others are slow, not silent; the budget bounds what silent ones cost."""
    limits = Limits()
    world = machines(2, 2, silent, load * 4 / RATE_RPS)

    offered = world.run(RATE_RPS, seed)

    bound = limits.retry_share * offered + limits.retry_burst if silent else 0.1 * offered
    assert world.sends <= offered + bound
    assert len(world.latencies_s) + world.failed <= offered


def test_a_third_takes_the_place_of_the_first_where_both_are_silent() -> None:
    """The request is with two at most, and what the first says late is not an answer any more."""
    core = dispatcher(*map(instance, "abc"), limits=Limits(survives=True))
    (first,) = of(Send, core.offer(lost := request(1)))
    (second,) = of(Send, core.hedge(lost, 0.1))
    assert not core.hedge(lost, 0.11), "the second has hardly had time"

    withdrawn, third = core.hedge(lost, 0.14)

    assert withdrawn == Withdraw(first.instance, lost)
    assert isinstance(third, Send)
    assert third.instance not in {first.instance, second.instance}
    assert not core.result(first.instance.id, 1, now_s=0.15)
    assert of(Reply, core.result(third.instance.id, 1, now_s=0.16))


def test_a_request_of_a_silent_instance_goes_before_those_that_wait() -> None:
    core = dispatcher(instance("a"), instance("b"), limits=Limits(survives=True))
    sent = of(Send, [*core.offer(request(1)), *core.offer(request(2))])
    lost, at = sent[0].pending, sent[1].instance
    core.offer(request(3))
    core.result(at.id, sent[1].pending.request.number, now_s=0.05)  # takes the third
    core.offer(request(4, arrived_s=0.06))

    withdrawn = core.hedge(lost, 0.1)
    again = core.result(at.id, 3, now_s=0.12)

    assert withdrawn == [Withdraw(sent[0].instance, lost)]
    assert of(Send, again) == [Send(at, lost)]


def test_workers_of_a_machine_are_suspects_once_two_of_them_are_silent() -> None:
    """One that has answered since is none, nor is any of another machine."""
    one, two, idle, busy, other = states = [
        InstanceState(replace(instance(name), endpoint=endpoint))
        for name, endpoint in zip("abcde", ("m0:1", "m0:2", "m0:3", "m0:4", "m1:1"), strict=True)
    ]
    busy.heard_s = 2.0
    silence = Silence()
    silence.begin(one, 1.0)
    assert [*silence.without_suspects(states)] == states

    silence.begin(two, 1.1)
    assert [*silence.without_suspects(states)] == [busy, other]
    assert [*silence.others(states)] == [idle, busy, other]

    silence.end(one.instance.id)
    assert [*silence.without_suspects(states)] == states

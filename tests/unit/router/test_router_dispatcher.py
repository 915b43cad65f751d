"""The dispatcher under any order of events: no request lost, none answered twice, FCFS."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.kit.errors import DeadlineExceeded, NotFound, ResourceExhausted, Unavailable
from services.router.decisions import Decision, Dial, Fail, Release, Reply, Send, Withdraw
from services.router.dispatcher import Dispatcher
from services.router.domain import Instance, InstanceId, Limits, ModelRoutes, Request

ROUTES = ModelRoutes("digits", slo_latency_s=0.1, slo_percentile=95, instance_choice="shares")
CREDITS = 2


def instance(name: str, share: float = 1.0) -> Instance:
    return Instance(
        endpoint=f"{name}:1",
        segment_id=name,
        model="digits",
        variant="small",
        accuracy=0.9,
        share=share,
        credits=CREDITS,
    )


def request(number: int) -> Request:
    return Request(number, "digits", b"", arrived_s=0.0, deadline_s=1.0)


def dispatcher(*instances: Instance, limits: Limits | None = None) -> Dispatcher:
    """A dispatcher whose instances are up with one credit each."""
    found = Dispatcher(ROUTES, limits or Limits())
    found.swap(replace(ROUTES, instances=instances))
    for each in instances:
        found.up(each.id, 1)
    return found


class AnyOrder(RuleBasedStateMachine):
    """Drives a dispatcher with every kind of event and keeps its own, naive account."""

    NAMES = ("a", "b", "c", "d")

    def __init__(self) -> None:
        super().__init__()
        self.core = Dispatcher(ROUTES, Limits(max_queue=5, max_attempts=3))
        self.number = 0
        self.table: dict[InstanceId, Instance] = {}
        self.dialed: set[InstanceId] = set()
        self.up: set[InstanceId] = set()
        self.draining: set[InstanceId] = set()
        self.held: dict[InstanceId, dict[int, Request]] = {}
        self.waiting: dict[int, Request] = {}
        self.open: dict[int, Request] = {}

    def carry_out(self, decisions: Iterable[Decision]) -> list[Decision]:
        found = list(decisions)
        for decision in found:
            match decision:
                case Send(to, sent):
                    self.check_send(to, sent)
                    self.held[to.id][sent.number] = self.waiting.pop(sent.number)
                case Reply(_, ended):
                    del self.open[ended.number]  # KeyError: answered twice, or never accepted
                case Fail(ended, _):
                    self.open.pop(ended.number, None)
                    self.waiting.pop(ended.number, None)
                case Withdraw(to, gone):
                    assert gone.number in self.held[to.id]
                case Dial(to):
                    assert to.id not in self.dialed
                    self.dialed.add(to.id)
                    self.held[to.id] = {}
                case Release(to):
                    assert not self.held.pop(to.id)
                    for known in (self.dialed, self.up, self.draining):
                        known.discard(to.id)
        return found

    def check_send(self, to: Instance, sent: Request) -> None:
        assert sent.number == min(self.waiting), "first come, first served"
        assert to.id in self.takers()
        assert len(self.held[to.id]) < CREDITS, "never more than the credits"
        assert not sent.over
        shared = any(self.table[key].share > 0 for key in self.takers())
        assert to.share > 0 or not shared, "without a share only where nobody has one"

    def takers(self) -> set[InstanceId]:
        return (self.up - self.draining) & self.table.keys()

    @rule()
    def offer(self) -> None:
        self.number += 1
        made = request(self.number)
        self.open[made.number] = self.waiting[made.number] = made
        if len(self.waiting) <= 5:
            self.carry_out(self.core.offer(made))
            return
        with pytest.raises(ResourceExhausted):
            self.core.offer(made)
        del self.open[made.number], self.waiting[made.number]

    @rule(shares=st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.0, 0.3, 0.7])))
    def swap(self, shares: dict[str, float]) -> None:
        made = tuple(instance(name, share) for name, share in shares.items())
        self.table = {each.id: each for each in made}
        self.carry_out(self.core.swap(replace(ROUTES, instances=made)))

    @precondition(lambda self: self.dialed - self.up)
    @rule(data=st.data())
    def rise(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.dialed - self.up)))
        self.up.add(key)
        self.carry_out(self.core.up(key, CREDITS))

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.up)))
        self.draining.add(key)
        self.carry_out(self.core.draining(key))

    @precondition(lambda self: self.dialed)
    @rule(data=st.data(), seen=st.booleans())
    def fall(self, data: st.DataObject, seen: bool) -> None:
        """A stream ends; what it held waits again unless its caller has gone."""
        key = data.draw(st.sampled_from(sorted(self.dialed)))
        for held in self.held[key].values():
            held.sent = seen
            if held.number in self.open:
                self.waiting[held.number] = held
        self.held[key] = {}
        self.up.discard(key)
        self.draining.discard(key)
        self.carry_out(self.core.down(key))

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), refused=st.booleans())
    def finish(self, data: st.DataObject, refused: bool) -> None:
        key = data.draw(st.sampled_from(sorted(k for k, held in self.held.items() if held)))
        number = data.draw(st.sampled_from(sorted(self.held[key])))
        done = self.held[key].pop(number)
        if refused and number in self.open:
            self.waiting[number] = done
        self.carry_out(self.core.result(key, number, refused=refused))
        assert refused or number not in self.open

    @precondition(lambda self: self.open)
    @rule(data=st.data(), expired=st.booleans())
    def give_up(self, data: st.DataObject, expired: bool) -> None:
        """The caller goes, or its deadline passes."""
        gone = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        decisions = self.core.expire(gone) if expired else self.core.abandon(gone)
        self.open.pop(gone.number)
        self.waiting.pop(gone.number, None)
        self.carry_out(decisions)
        assert expired == any(isinstance(decision, Fail) for decision in decisions)

    @invariant()
    def accounts_agree(self) -> None:
        assert self.core.queue_depth == len(self.waiting)
        assert self.core.in_flight == sum(len(held) for held in self.held.values())
        assert set(self.core.lanes) == self.dialed
        in_flight = {n for held in self.held.values() for n in held}
        assert self.open.keys() <= self.waiting.keys() | in_flight, "no request is lost"
        assert self.waiting.keys() <= self.open.keys(), "nobody works for a caller who has gone"

    @invariant()
    def nothing_waits_while_somebody_is_free(self) -> None:
        takers = self.takers()
        shared = {key for key in takers if self.table[key].share > 0}
        free = [key for key in shared or takers if len(self.held[key]) < CREDITS]
        assert not (free and self.waiting)

    def teardown(self) -> None:
        """With one instance left that works, everything ends."""
        self.swap({"z": 1.0})
        self.up.add(instance("z").id)
        self.carry_out(self.core.up(instance("z").id, CREDITS))
        while any(self.held.values()):
            key = next(key for key, held in self.held.items() if held)
            number = next(iter(self.held[key]))
            del self.held[key][number]
            self.carry_out(self.core.result(key, number, refused=False))
        assert not self.open
        assert not self.waiting


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def of(kind: type[Any], decisions: Iterable[Decision]) -> list[Any]:
    return [decision for decision in decisions if isinstance(decision, kind)]


def test_a_request_whose_worker_dies_is_served_before_those_that_came_later() -> None:
    core = dispatcher(instance("a"))
    first, second = request(1), request(2)
    core.offer(first)
    core.offer(second)

    core.down(instance("a").id)
    (sent,) = of(Send, core.up(instance("a").id, 1))

    assert sent.request is first
    assert (first.attempts, core.queue_depth) == (2, 1)


def test_a_request_that_two_workers_died_with_fails_and_is_not_given_to_a_third() -> None:
    core = dispatcher(instance("a"), instance("b"), instance("c"))
    poison = request(1)
    (sent,) = of(Send, core.offer(poison))
    poison.sent = True
    (sent,) = of(Send, core.down(sent.instance.id))
    poison.sent = True

    (failed,) = of(Fail, core.down(sent.instance.id))

    assert isinstance(failed.error, Unavailable)
    assert failed.error.reason == "WORKERS_DIED"
    assert failed.error.retry_after_s is None
    assert core.queue_depth == core.in_flight == 0


def test_a_request_that_had_not_left_is_no_suspect_of_the_death() -> None:
    core = dispatcher(instance("a"))
    innocent = request(1)
    core.offer(innocent)

    for _ in range(3):
        assert not of(Fail, core.down(instance("a").id))
        core.up(instance("a").id, 1)

    assert innocent.deaths == 0


def test_a_worker_that_drained_before_its_stream_ended_killed_nobody() -> None:
    core = dispatcher(instance("a"), instance("b"))
    moved = request(1)
    (sent,) = of(Send, core.offer(moved))
    moved.sent = True
    core.draining(sent.instance.id)

    (again,) = of(Send, core.down(sent.instance.id))

    assert again.instance != sent.instance
    assert moved.deaths == 0


def test_a_request_that_every_worker_refuses_fails_with_a_time_to_retry() -> None:
    core = dispatcher(instance("a"), limits=Limits(max_attempts=3))
    core.offer(request(1))
    for _ in range(2):
        assert of(Send, core.result(instance("a").id, 1, refused=True))

    (failed,) = of(Fail, core.result(instance("a").id, 1, refused=True))

    assert failed.error.reason == "NO_WORKER_ANSWERED"
    assert failed.error.retry_after_s == ROUTES.slo_latency_s


def test_an_instance_that_leaves_the_table_finishes_what_it_holds_and_then_closes() -> None:
    core = dispatcher(instance("a"))
    core.offer(request(1))

    swapped = core.swap(replace(ROUTES, instances=(instance("b"),)))
    answered = core.result(instance("a").id, 1, refused=False)

    assert not of(Release, swapped)
    assert [type(decision) for decision in answered] == [Reply, Release]


def test_an_instance_that_returns_to_the_table_in_time_keeps_its_stream() -> None:
    core = dispatcher(instance("a"))
    core.offer(request(1))
    core.swap(ROUTES)

    back = core.swap(replace(ROUTES, instances=(instance("a"),)))

    assert not of(Dial, back)
    assert not of(Release, core.result(instance("a").id, 1, refused=False))


def test_the_abandoned_request_keeps_its_credit_until_the_worker_says_so() -> None:
    """A worker that still computes is not free, whoever has lost interest."""
    core = dispatcher(instance("a"))
    gone = request(1)
    core.offer(gone)
    core.offer(request(2))

    assert of(Withdraw, core.abandon(gone))
    assert core.queue_depth == 1
    (sent,) = of(Send, core.result(instance("a").id, 1, refused=False))
    assert sent.request.number == 2


def test_expiry_says_where_the_time_went() -> None:
    core = dispatcher()
    waiting = request(1)
    core.offer(waiting)

    (failed,) = of(Fail, core.expire(waiting))

    assert isinstance(failed.error, DeadlineExceeded)
    assert "waiting for an instance" in failed.error.message


def test_retiring_a_model_fails_what_waits_and_answers_what_is_computed() -> None:
    core = dispatcher(instance("a"))
    core.offer(request(1))
    core.offer(request(2))

    (failed,) = of(Fail, core.retire())
    (answered, _) = core.result(instance("a").id, 1, refused=False)

    assert isinstance(failed.error, NotFound)
    assert isinstance(answered, Reply)


@pytest.mark.parametrize("event", ["up", "draining", "down"])
def test_events_of_an_unknown_instance_are_ignored(event: str) -> None:
    core = dispatcher()
    key = instance("stranger").id

    assert not (core.up(key, 1) if event == "up" else getattr(core, event)(key))

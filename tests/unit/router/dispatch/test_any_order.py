"""The dispatcher under any order of events: no request lost, none answered twice, all in order."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.kit.config import Discipline, InstanceChoice
from services.kit.errors import FailedPrecondition, ResourceExhausted, Unavailable
from services.router.core.balancing.instance_choice import CHOICES
from services.router.core.dispatch.decisions import (
    Decision,
    Dial,
    Fail,
    Release,
    Reply,
    Send,
    Withdraw,
)
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import Instance, InstanceId, Limits
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.request_queue import DISCIPLINES
from services.router.core.worker_port import Hello
from tests.support.examples import examples
from tests.support.router.dispatching import CREDITS, ROUTES, instance, request


def may_take(to: Instance, pending: PendingRequest) -> bool:
    return to.accuracy >= pending.request.accuracy_floor


def may_take_any(instances: Iterable[Instance], pending: PendingRequest) -> bool:
    return any(may_take(each, pending) for each in instances)


class AnyOrder(RuleBasedStateMachine):
    """Drives a dispatcher with every kind of event and keeps its own, naive account."""

    NAMES = ("a", "b", "c", "d")
    LIMITS = Limits(max_queue=5, max_attempts=3)

    def __init__(self) -> None:
        super().__init__()
        self.core = Dispatcher(ROUTES, self.LIMITS)
        self.number = self.refused = 0
        self.table: dict[InstanceId, Instance] = {}
        self.dialed: set[InstanceId] = set()
        self.up: set[InstanceId] = set()
        self.draining: set[InstanceId] = set()
        self.held: dict[InstanceId, dict[int, PendingRequest]] = {}
        self.waiting: dict[int, PendingRequest] = {}
        self.open: dict[int, PendingRequest] = {}
        self.ended: set[int] = set()
        self.credits: dict[InstanceId, int] = {}
        self.in_batches: set[InstanceId] = set()
        self.withdrawn: set[tuple[InstanceId, int]] = set()  # because it was silent
        self.again: set[int] = set()  # those that go before others for that
        self.discipline: Discipline = "fcfs"

    def execute(self, decisions: Iterable[Decision]) -> list[Decision]:
        found = list(decisions)
        for decision in found:
            match decision:
                case Send(to, sent) if sent.request.number in self.waiting:
                    self.check_send(to, sent)
                    self.held[to.id][sent.request.number] = self.waiting.pop(sent.request.number)
                    self.again.discard(sent.request.number)
                case Send(to, sent):  # a hedge
                    self.check_hedge(to, sent)
                    self.held[to.id][sent.request.number] = sent
                case Reply(_, ended) | Fail(ended, _):
                    self.end(ended)
                case Withdraw(to, gone):
                    number = gone.request.number
                    assert number in self.held[to.id]
                    if number in self.open and not gone.ended:
                        self.withdrawn.add((to.id, number))
                        self.returned(gone)
                        self.again |= {number} & self.waiting.keys()
                case Dial(to):
                    assert to.id not in self.dialed
                    self.dialed.add(to.id)
                    self.held[to.id] = {}
                case Release(to):
                    assert not self.held.pop(to.id)
                    for known in (self.dialed, self.up, self.draining):
                        known.discard(to.id)
        return found

    def end(self, pending: PendingRequest) -> None:
        """A request ends: answered, failed or cancelled, and never twice."""
        number = pending.request.number
        assert number not in self.ended, "ended once already"
        assert self.open.pop(number) is pending, "never accepted"
        self.waiting.pop(number, None)
        self.ended.add(number)

    def check_send(self, to: Instance, sent: PendingRequest) -> None:
        assert to.accuracy >= sent.request.accuracy_floor
        alike = [each for each in self.waiting.values() if self.group(each) == self.group(sent)]
        if self.group(sent) == "choosy":
            alike = [each for each in alike if to.id in self.may_take(each)]
        key = DISCIPLINES[self.discipline if self.group(sent) == "any" else "fcfs"]
        first = min(alike, key=lambda each: (key(each), each.request.number))
        assert sent is first, "in the order of the discipline; returned and choosy ones apart"
        older = [each for each in self.waiting.values() if each.order < sent.order]
        if self.group(sent) == "any":
            assert not any(self.group(e) == "choosy" and to.id in self.may_take(e) for e in older)
        elif (
            self.group(sent) == "choosy" and self.discipline == "fcfs" and to.id in self.eligible()
        ):
            assert not any(self.group(each) == "any" for each in older), "choosing is no way ahead"
        if sent.deaths:
            assert not any(held.deaths for held in self.held[to.id].values()), "one suspect at most"
        assert to.id in self.takers()
        may = self.may_take(sent)
        if len(self.held[to.id]) >= self.credits[to.id]:
            assert len(self.held[to.id]) < self.most(to.id), "never more than two batches"
            free = [key for key in may if len(self.held[key]) < self.credits[key]]
            by_shares = self.core.routes.instance_choice == "shares"
            assert sent.deaths or by_shares or not free, "the next batch where no credit is left"
        assert not sent.ended
        assert to.id in may, "without a share only where no instance has one, or none so accurate"

    def check_hedge(self, to: Instance, sent: PendingRequest) -> None:
        assert not self.waiting, "hedges take no credit that somebody waits for"
        assert sent.request.number in self.open
        assert len(self.held[to.id]) < self.credits[to.id], "never more than the credits"
        assert len(self.having(sent)) == 1, "with two at most"
        assert sent.request.number not in self.held[to.id]

    def group(self, pending: PendingRequest) -> str:
        if pending.deaths or pending.refusals or pending.request.number in self.again:
            return "returned"
        return "choosy" if pending.request.accuracy_floor else "any"

    def having(self, pending: PendingRequest) -> set[InstanceId]:
        """The instances that have a request which was not withdrawn from them."""
        number = pending.request.number
        having = {key for key, held in self.held.items() if number in held}
        return {key for key in having if (key, number) not in self.withdrawn}

    def returned(self, pending: PendingRequest) -> None:
        """An instance has a request no more: it waits again, unless another has it, too."""
        if pending.request.number in self.open and not self.having(pending):
            self.waiting[pending.request.number] = pending

    def most(self, key: InstanceId) -> int:
        return self.credits[key] * (2 if key in self.in_batches else 1)

    def eligible(self) -> set[InstanceId]:
        takers = self.takers()
        return {key for key in takers if self.table[key].share > 0} or takers

    def may_take(self, pending: PendingRequest) -> set[InstanceId]:
        """The instances that may be given a request, with room or without."""
        refusals = pending.refusals or ()

        def fit(keys: set[InstanceId]) -> set[InstanceId]:
            return {k for k in keys if k not in refusals and may_take(self.table[k], pending)}

        found = fit(self.eligible()) or fit(self.takers())
        speaking = {key for key in found if key not in self.core.silence.since_s} or found
        return {key for key in speaking if pending.request.number not in self.held[key]}

    def takers(self) -> set[InstanceId]:
        return (self.up - self.draining) & self.table.keys()

    @rule(
        deadline_s=st.sampled_from([1.0, 2.0, 3.0]),
        priority=st.sampled_from([0, 1, 200]),
        accuracy_floor=st.sampled_from([0.0, 0.0, 0.9, 0.95, 0.99]),
    )
    def offer(self, deadline_s: float, priority: int, accuracy_floor: float) -> None:
        self.number += 1
        made = request(
            self.number, deadline_s=deadline_s, priority=priority, accuracy_floor=accuracy_floor
        )
        if self.table and not any(may_take(each, made) for each in self.table.values()):
            with pytest.raises(FailedPrecondition, match=r"small has 0\.9|large has 0\.95"):
                self.core.offer(made)
            self.refused += 1
            return
        self.open[self.number] = self.waiting[self.number] = made
        last = max(
            (each for each in self.waiting.values() if self.group(each) == "any" or each is made),
            key=lambda each: (DISCIPLINES[self.discipline](each), each.request.number),
        )
        if len(self.waiting) <= 5 or last is not made:  # a full queue lets the last one go
            ended = [
                each.pending
                for each in self.execute(self.core.offer(made))
                if isinstance(each, Fail)
            ]
            assert ended == ([last] if last.ended else [])
            return
        with pytest.raises(ResourceExhausted):
            self.core.offer(made)
        self.end(made)

    @rule(accuracy_floor=st.sampled_from([0.0, 0.9]))
    def resume(self, accuracy_floor: float) -> None:
        """A request that was begun elsewhere comes: it is not refused, however many wait."""
        self.number += 1
        made = request(self.number, accuracy_floor=accuracy_floor)
        self.open[self.number] = self.waiting[self.number] = made
        self.execute(self.core.resume(made, 0.0))
        assert self.number in self.open or not may_take_any(self.table.values(), made)

    @rule(discipline=st.sampled_from(sorted(DISCIPLINES)), choice=st.sampled_from(sorted(CHOICES)))
    def policy(self, discipline: Discipline, choice: InstanceChoice) -> None:
        """Another discipline and another choice, while requests wait."""
        self.discipline = discipline
        routes = self.core.routes
        self.execute(self.core.swap(replace(routes, discipline=discipline, instance_choice=choice)))

    @precondition(lambda self: self.up)
    @rule(data=st.data(), credits_=st.integers(1, 4))
    def grant(self, data: st.DataObject, credits_: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.up)))
        self.credits[key] = credits_
        self.execute(self.core.credits(key, credits_))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def hedge(self, data: st.DataObject) -> None:
        chosen = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        self.execute(self.core.hedge(chosen))

    @rule(shares=st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.0, 0.3, 0.7])))
    def swap(self, shares: dict[str, float]) -> None:
        made = tuple(
            instance(name, share, accuracy=0.9 if name in "ab" else 0.95)
            for name, share in shares.items()
        )
        self.table = {each.id: each for each in made}
        self.execute(self.core.swap(replace(self.core.routes, instances=made)))

    @precondition(lambda self: self.dialed - self.up)
    @rule(data=st.data(), in_batches=st.booleans())
    def rise(self, data: st.DataObject, in_batches: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.dialed - self.up)))
        self.up.add(key)
        self.credits[key] = CREDITS
        (self.in_batches.add if in_batches else self.in_batches.discard)(key)
        self.execute(self.core.up(key, Hello(CREDITS, b"", in_batches=in_batches)))

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.up)))
        self.draining.add(key)
        self.execute(self.core.draining(key))

    @precondition(lambda self: self.dialed)
    @rule(data=st.data(), seen=st.booleans())
    def fall(self, data: st.DataObject, seen: bool) -> None:
        """A stream ends; what it held waits again unless its caller has gone."""
        key = data.draw(st.sampled_from(sorted(self.dialed)))
        fallen, self.held[key] = self.held[key], {}
        late = {number for at, number in self.withdrawn if at == key}
        self.withdrawn -= {(key, number) for number in late}
        for number, held in fallen.items():
            if number not in late:
                self.returned(held)
        self.up.discard(key)
        self.draining.discard(key)
        self.execute(self.core.down(key, () if seen else fallen))

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), refused=st.booleans())
    def finish(self, data: st.DataObject, refused: bool) -> None:
        key = data.draw(st.sampled_from(sorted(k for k, held in self.held.items() if held)))
        number = data.draw(st.sampled_from(sorted(self.held[key])))
        done = self.held[key].pop(number)
        late = (key, number) in self.withdrawn
        self.withdrawn.discard((key, number))
        if refused and not late:
            self.returned(done)
        answers = not (refused or late) and (not done.answering or done.holder == key)
        refusal = Unavailable("busy") if refused else None
        self.execute(self.core.result(key, number, refusal=refusal))
        assert not answers or number not in self.open

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def part(self, data: st.DataObject) -> None:
        """A part of an answer comes: of two instances, only the first one's is taken."""
        key = data.draw(st.sampled_from(sorted(k for k, held in self.held.items() if held)))
        number = data.draw(st.sampled_from(sorted(self.held[key])))
        held = self.held[key][number]
        late = (key, number) in self.withdrawn
        wanted = number in self.open and not late and (not held.answering or held.holder == key)
        assert self.core.part(key, number) is (held if wanted else None)
        assert not wanted or held.holder == key

    @precondition(lambda self: self.open)
    @rule(data=st.data(), expired=st.booleans())
    def give_up(self, data: st.DataObject, expired: bool) -> None:
        """The caller goes, or its deadline passes."""
        gone = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        decisions = self.core.expire(gone) if expired else self.core.cancel(gone)
        if not expired:
            self.end(gone)
        self.execute(decisions)
        assert expired == any(isinstance(decision, Fail) for decision in decisions)
        assert not self.core.cancel(gone)
        assert not self.core.expire(gone), "nothing ends twice"

    @invariant()
    def accounts_agree(self) -> None:
        assert self.core.queue_depth == len(self.waiting)
        assert self.core.in_flight == sum(len(held) for held in self.held.values())
        assert set(self.core.states) == self.dialed
        in_flight = {n for held in self.held.values() for n in held}
        assert self.open.keys() <= self.waiting.keys() | in_flight, "no request is lost"
        assert self.waiting.keys() <= self.open.keys(), "no request outlives its caller"

    @invariant()
    def nothing_waits_while_somebody_is_free(self) -> None:
        waiting = sorted(self.waiting.values(), key=lambda e: e.order)
        back = {e.request.number for e in waiting if e.deaths or e.refusals} | self.again
        returned = [each for each in waiting if each.request.number in back]
        others = [each for each in waiting if each.request.number not in back]
        for pending in [*returned[:1], *others]:
            free = {key for key in self.may_take(pending) if len(self.held[key]) < self.most(key)}
            if pending.deaths:
                free = {k for k in free if not any(h.deaths for h in self.held[k].values())}
            assert not free

    @invariant()
    def no_instance_has_a_request_that_it_refused(self) -> None:
        for key, held in self.held.items():
            assert not any(key in (each.refusals or ()) for each in held.values())

    @invariant()
    def no_request_waits_for_an_accuracy_that_there_is_not(self) -> None:
        for pending in self.waiting.values():
            assert not self.table or any(may_take(i, pending) for i in self.table.values())

    def teardown(self) -> None:
        """With one instance left that works, everything ends."""
        self.swap({"z": 1.0})
        self.up.add(instance("z").id)
        self.credits[instance("z").id] = CREDITS
        self.execute(self.core.up(instance("z").id, Hello(CREDITS, b"")))
        while any(self.held.values()):
            key = next(key for key, held in self.held.items() if held)
            number = next(iter(self.held[key]))
            del self.held[key][number]
            self.execute(self.core.result(key, number))
        assert not self.open
        assert not self.waiting
        assert len(self.ended) == self.number - self.refused


class AnyOrderSurviving(AnyOrder):
    """A model that must survive a loss: instances fall silent, and requests pass them."""

    LIMITS = Limits(max_queue=5, max_attempts=4, survives=True)

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fall_silent(self, data: st.DataObject) -> None:
        """Time passes, and one of the open requests has waited long enough."""
        self.now_s += 0.05
        chosen = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        self.execute(self.core.hedge(chosen, self.now_s))


AnyOrderSurviving.TestCase.settings = examples(1.0, stateful_step_count=60)
TestAnyOrderSurviving = AnyOrderSurviving.TestCase

AnyOrder.TestCase.settings = examples(1.2, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase

"""Requests that can wait: below every other class, each ended once, and beside texts in time."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.kit.config import WaitingRules
from services.kit.errors import DeadlineExceeded, ResourceExhausted
from services.kit.request_cost import Cost
from services.router.core.deferrable.headroom import Headroom, Objective
from services.router.core.deferrable.interactive_peak import InteractivePeak
from services.router.core.deferrable.marginal_energy import MarginalEnergy
from services.router.core.deferrable.release import ReleasePeriod, ReleasePlan
from services.router.core.dispatch.decisions import Decision, Fail, Reconsider, Reply, Send
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.dispatch.filler import WaitingBounds
from services.router.core.model import Instance, Limits
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Hello
from tests.support.examples import examples
from tests.support.router.dispatching import ROUTES, instance, of, request
from tests.support.router.token_replicas import Fleet, poisson, waiting


def deferred(number: int, **given: Any) -> PendingRequest:
    found = request(number, **{"deadline_s": 1e6, **given})
    return PendingRequest(found.request._replace(deferrable=True))


def serving(
    *instances: Instance, credits_: int = 8, in_batches: bool = True, **rules: Any
) -> Dispatcher:
    """A dispatcher of a batching model whose deferrable requests are not collected."""
    bounds = WaitingBounds.of(WaitingRules(**{"patience_s": 0.0, **rules}))
    found = Dispatcher(ROUTES, Limits(), bounds=bounds)
    found.swap(replace(ROUTES, instances=instances))
    for each in instances:
        found.up(each.id, Hello(credits_, b"", in_batches=in_batches))
    return found


def batch(size: int, compute_s: float) -> Cost:
    return Cost(size * 1.0 + 4.0, 0.0, "model", 0.0, compute_s, size, 1)


class BelowAll(RuleBasedStateMachine):
    """Drives both classes with every kind of event, and keeps its own account."""

    def __init__(self) -> None:
        super().__init__()
        self.instances = (instance("a"), instance("b"))
        self.core = serving(*self.instances, credits_=3)
        self.now_s, self.number = 0.0, 0
        self.open: dict[int, PendingRequest] = {}
        self.ended: set[int] = set()
        self.held: dict[str, set[int]] = {"a": set(), "b": set()}

    def execute(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Send(to, pending):
                    if pending.request.deferrable:
                        assert not self.core.queue_depth, "an interactive request waits behind it"
                    self.held[to.segment_id].add(pending.request.number)
                case Reply(_, pending) | Fail(pending, _):
                    self.end(pending.request.number)

    def end(self, number: int) -> None:
        assert number not in self.ended, "ended twice"
        self.ended.add(number)
        del self.open[number]

    @rule(waits=st.booleans(), for_s=st.floats(0.5, 100))
    def arrive(self, waits: bool, for_s: float) -> None:
        self.number += 1
        make = deferred if waits else request
        until_s = self.now_s + for_s
        pending = make(self.number, arrived_s=self.now_s, deadline_s=until_s)
        self.open[self.number] = pending
        try:
            self.execute(self.core.offer(pending))
        except ResourceExhausted:
            assert not waits, "there is memory for it"
            del self.open[self.number]

    @rule(at=st.sampled_from("ab"), data=st.data())
    def answer(self, at: str, data: st.DataObject) -> None:
        if self.held[at]:
            number = data.draw(st.sampled_from(sorted(self.held[at])))
            self.held[at].discard(number)
            to = next(each for each in self.instances if each.segment_id == at)
            cost = batch(2, 0.01)
            self.execute(self.core.result(to.id, number, now_s=self.now_s, cost=cost))

    @rule(seconds=st.sampled_from([0.01, 0.3, 2.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for pending in [p for p in self.open.values() if p.request.deadline_s <= self.now_s]:
            self.execute(self.core.expire(pending))
        self.execute(self.core.reconsider(self.now_s))

    @rule(at=st.sampled_from("ab"))
    def restart(self, at: str) -> None:
        to = next(each for each in self.instances if each.segment_id == at)
        self.held[at].clear()
        self.execute(self.core.down(to.id, now_s=self.now_s))
        self.execute(self.core.up(to.id, Hello(3, b"", in_batches=True), self.now_s))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.open:
            number = data.draw(st.sampled_from(sorted(self.open)))
            self.execute(self.core.cancel(self.open[number]))
            self.end(number)

    @invariant()
    def each_is_somewhere(self) -> None:
        """A deferrable request is queued or with an instance until it ends; counts agree."""
        queued = {each.request.number for each in self.core.filler.queue}
        for number, pending in self.open.items():
            if pending.request.deferrable:
                assert (number in queued) != (pending.holder is not None)
        for state in self.core.states.values():
            waiting = sum(each.request.deferrable for each in state.in_flight.values())
            assert state.deferrable == waiting
            assert len(state.in_flight) <= state.most


BelowAll.TestCase.settings = examples(0.3, stateful_step_count=30)
TestBelowAll = BelowAll.TestCase


def test_interactive_requests_pause_admission_within_one_step() -> None:
    """While one waits no deferrable request begins, whatever ends; afterwards they go on."""
    one = instance("a")
    core = serving(one, credits_=1, in_batches=False)
    core.offer(request(1))
    offered = [each for number in (2, 3) for each in core.offer(deferred(number))]
    core.offer(request(4))

    first = core.result(one.id, 1, now_s=0.01)
    assert [send.pending.request.number for send in of(Send, first)] == [4]
    held_by = core.filler.held_by
    after = core.result(one.id, 4, now_s=0.02)
    assert "interactive requests" in held_by
    assert not of(Send, [*offered, *after])
    assert of(Reconsider, [*offered, *first, *after])
    assert of(Send, core.reconsider(60.0)), "admission resumes when the pause is over"


def test_the_earliest_deadline_goes_first() -> None:
    one = instance("a")
    core = serving(one, credits_=1, in_batches=False)
    core.offer(request(1))
    core.offer(deferred(2, deadline_s=500.0))
    core.offer(deferred(3, deadline_s=100.0))

    core.result(one.id, 1, now_s=0.1)
    sent = of(Send, core.reconsider(60.0))
    assert [each.pending.request.number for each in sent] == [3]


def test_a_request_that_finds_no_room_until_its_time_says_why() -> None:
    one = instance("a")
    core = serving(one, credits_=1, in_batches=False)
    core.offer(request(1))
    core.offer(late := deferred(2, deadline_s=30.0))

    (failed,) = of(Fail, core.expire(late))
    assert isinstance(failed.error, DeadlineExceeded)
    assert failed.error.reason == "WAIT_UNTIL"
    assert "leave no room" in failed.error.message
    assert core.expire(late) == [], "it ends once"


def test_memory_of_requests_that_wait_is_bounded() -> None:
    """The bytes of interactive requests are not theirs to take."""
    core = serving(instance("a"), credits_=1, in_batches=False, max_mib=1.0)
    core.offer(request(1))
    core.offer(deferred(2, body=bytes(2**20)))
    with pytest.raises(ResourceExhausted, match=r"router\.waiting\.max_mib allows 1 MiB"):
        core.offer(deferred(3, body=b"x"))
    assert core.queue_depth == 0


def test_a_quiet_instance_gets_a_full_load_or_waits_for_one() -> None:
    one = instance("a")
    core = serving(one, credits_=4, patience_s=5.0)
    held = [of(Send, core.offer(deferred(number))) for number in range(1, 4)]
    assert not any(held)
    assert "collected" in core.filler.held_by
    assert len(of(Send, core.offer(deferred(4)))) == 4, "enough to fill it at first"


def test_a_request_that_waited_for_company_long_enough_begins_alone() -> None:
    core = serving(instance("a"), credits_=4, patience_s=5.0)
    (again,) = of(Reconsider, core.offer(deferred(1)))
    assert again.at_s <= 5.0
    assert not of(Send, core.reconsider(4.0))
    assert of(Send, core.reconsider(5.0))


def test_a_plan_holds_requests_until_they_are_due() -> None:
    """In a period without release none begins, but one whose deadline comes; later all do."""
    core = serving(instance("a"))
    core.filler.release = ReleasePlan([ReleasePeriod(0.0, 3600.0, 0.0, "cleaner hours come")])
    core.offer(deferred(1, deadline_s=86_400.0))
    assert core.filler.held_by == "held by plan: cleaner hours come"
    assert [
        s.pending.request.number for s in of(Send, core.offer(deferred(2, deadline_s=5.0)))
    ] == [2]
    assert [s.pending.request.number for s in of(Send, core.reconsider(3600.0))] == [1]


def test_a_rate_of_a_plan_is_kept() -> None:
    plan, now_s, begun = ReleasePlan([ReleasePeriod(0.0, 100.0, 5.0)]), 0.0, 0
    while now_s < 100.0:
        if plan.budget(now_s) >= 1:
            plan.spend()
            begun += 1
        now_s += 0.01
    assert 490 <= begun <= 510


@pytest.mark.parametrize(("compute_s", "most"), [(0.02, 16), (0.03, 8), (0.05, 0)])
def test_batches_take_as_many_along_as_the_objective_allows(compute_s: float, most: int) -> None:
    """A request that comes next waits for what is ahead, within a share of 0.1 s."""
    headroom, goal = Headroom(), Objective(0.1)
    for size in (1, 4, 8) * 8:
        headroom.observe_own(batch(size, compute_s), size, compute_s)
    assert headroom.pace(0, 8, 16, goal) == most


def test_aimd_gives_way_to_interactive_requests_and_does_not_probe_in_vain() -> None:
    """Each cut leaves less; one after another leaves pauses that grow."""
    headroom, goal = Headroom(), Objective(10.0, 1.0, 0.03)
    grown = []
    for second in range(200):
        headroom.observe_gap(0.05 if headroom.limit >= 2 else 0.01)
        before = headroom.limit
        headroom.adjust(int(headroom.limit), float(2 * second), goal)
        grown.append(headroom.limit > before)
    assert headroom.limit < 4
    assert sum(grown[100:]) < sum(grown[:100])


def test_slots_that_interactive_requests_needed_recently_are_kept() -> None:
    peak = InteractivePeak()
    for second in range(100):
        peak.hold(20 if second % 10 == 0 else 2, float(second))
    assert peak.reserve(2, 64) == 20
    peak.hold(0, 3600.0)
    peak.hold(0, 3700.0)
    assert peak.reserve(0, 64) == 2, "a spare alone, an hour later"


def test_marginal_energy_is_what_one_more_adds_and_never_more_than_is_attributed() -> None:
    """Batches take 4 J and 1 J for each item in them: one more adds 1 J, its part is more."""
    energy = MarginalEnergy()
    for size in (1, 2, 4, 8) * 8:
        cost = Cost((4.0 + size) / size, 0.0, "model", 0.0, 0.01, size, 1)
        assert (energy.of("k", cost, size) or 0.0) <= cost.energy_j
        energy.learn("k", cost, size)
    assert energy.of("k", Cost(3.0, 0.0, "model", 0.0, 0.01, 2, 1), 2) == pytest.approx(1.0)
    assert energy.of("other", Cost(3.0, 0.0, "model", 0.0, 0.01, 2, 1), 2) is None


@pytest.mark.parametrize("longer", [1, 8])
def test_texts_that_wait_leave_interactive_ones_in_time_at_70_percent(longer: int) -> None:
    """Attainment stays within half a point, also beside long answers, and much room is used.

    Two replicas, each with 7 of the 10 requests/s that its objectives allow, without deferrable
    requests and with a backlog of them.
    """
    alone, beside = Fleet(2, backlog=None), Fleet(2, backlog=waiting(9, longer))
    for fleet in (alone, beside):
        fleet.run(poisson(14.0, 100.0, 1), 100.0)
    assert alone.attainment > 0.99
    assert beside.attainment >= alone.attainment - 0.005
    assert not beside.sent_while_waiting
    assert beside.deferred_tokens > 50_000


def test_a_jump_of_interactive_load_costs_a_point_at_most() -> None:
    """From 2.5 to 8 requests/s at each of two replicas that long answers fill."""
    beside = Fleet(2, backlog=waiting(9, 8))
    beside.run([*poisson(5.0, 60.0, 1), *poisson(16.0, 110.0, 2, since_s=60.0)], 130.0)
    assert beside.attainment >= 0.99

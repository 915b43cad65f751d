"""Decisions of the dispatcher on each event."""

from dataclasses import replace

import pytest

from inference import grpc_service_pb2 as pb
from services.kit.errors import DeadlineExceeded, NotFound, ResourceExhausted, Unavailable
from services.router.core.dispatch.decisions import Dial, Fail, Release, Reply, Send, Withdraw
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import InstanceId, Limits
from services.router.core.prefix_cache import BLOCK_BYTES
from services.router.core.queue.request_queue import ByteBudget
from services.router.core.token_times import Held
from services.router.core.worker_port import Hello
from tests.support.router.dispatching import ROUTES, dispatcher, instance, of, request

BUSY = Unavailable("busy")


def test_a_request_whose_worker_dies_is_served_before_those_that_came_later() -> None:
    core = dispatcher(instance("a"))
    first, second = request(1), request(2)
    core.offer(first)
    core.offer(second)

    core.down(instance("a").id)
    (sent,) = of(Send, core.up(instance("a").id, Hello(1, b"")))

    assert sent.pending is first
    assert (first.attempts, core.queue_depth) == (2, 1)


def test_a_request_that_two_workers_died_with_fails_and_is_not_given_to_a_third() -> None:
    core = dispatcher(instance("a"), instance("b"), instance("c"))
    poison = request(1)
    (sent,) = of(Send, core.offer(poison))
    (sent,) = of(Send, core.down(sent.instance.id))

    (failed,) = of(Fail, core.down(sent.instance.id))

    assert isinstance(failed.error, Unavailable)
    assert failed.error.reason == "WORKERS_DIED"
    assert failed.error.retry_after_s is None
    assert core.queue_depth == core.in_flight == 0


def test_those_that_were_with_a_poisoned_request_are_answered() -> None:
    """The poison meets its second worker alone, or beside requests that no worker died with."""
    workers = [instance(name) for name in "abcd"]
    core = dispatcher(*workers)
    for each in workers:
        core.credits(each.id, 4)
    for number in range(1, 17):
        core.offer(request(number))
    poison, ends = 3, dict[int, str]()
    while core.in_flight:
        for state in list(core.states.values()):
            key = state.instance.id
            if poison in state.in_flight:
                decisions = core.down(key) + core.up(key, Hello(4, b""))
            else:
                numbers = list(state.in_flight)
                decisions = [d for n in numbers for d in core.result(key, n)]
            ends |= {d.pending.request.number: "answered" for d in of(Reply, decisions)}
            ends |= {d.pending.request.number: d.error.reason for d in of(Fail, decisions)}

    assert ends.pop(poison) == "WORKERS_DIED"
    assert ends == dict.fromkeys({*range(1, 17)} - {poison}, "answered")


def test_retries_beyond_the_budget_fail_with_the_reason() -> None:
    limits = Limits(retry_share=0.25, retry_burst=2)
    core = dispatcher(instance("a"), limits=limits)
    key = instance("a").id
    core.up(key, Hello(10, b""))
    for number in range(1, 5):
        core.offer(request(number))

    failed = of(Fail, core.down(key))

    assert [decision.error.reason for decision in failed] == ["RETRIES_SPENT"] * 2
    assert all(decision.error.retry_after_s for decision in failed)
    assert core.queue_depth == 2


def test_a_request_that_comes_back_after_its_deadline_is_not_sent_again() -> None:
    core = dispatcher(instance("a"), instance("b"))
    first = request(1)
    (sent,) = of(Send, core.offer(first))
    core.offer(request(2, arrived_s=first.request.deadline_s + 1, deadline_s=9.0))

    decisions = core.down(sent.instance.id) + core.up(sent.instance.id, Hello(1, b""))

    (failed,) = of(Fail, decisions)
    assert failed.pending is first
    assert isinstance(failed.error, DeadlineExceeded)
    assert not of(Send, decisions)


def test_of_two_workers_the_first_answers_and_the_request_is_withdrawn_from_the_other() -> None:
    core = dispatcher(instance("a"), instance("b"), limits=Limits(hedge_after_s=0.1))
    slow = request(1)
    (first,) = of(Send, core.offer(slow))
    (second,) = of(Send, core.hedge(slow))

    won = core.result(second.instance.id, 1)
    lost = core.result(first.instance.id, 1)

    assert first.instance != second.instance
    assert [type(decision) for decision in won] == [Reply, Withdraw]
    assert won[1] == Withdraw(first.instance, slow)
    assert not lost
    assert slow.attempts == 2


def test_a_request_is_hedged_only_where_a_worker_is_idle_and_the_budget_allows() -> None:
    core = dispatcher(instance("a"), instance("b"), limits=Limits(retry_share=0, retry_burst=0))
    alone, other = request(1), request(2)
    core.offer(alone)
    assert not core.hedge(alone), "no budget"

    core = dispatcher(instance("a"), instance("b"))
    core.offer(alone := request(1))
    core.offer(other)
    assert not core.hedge(alone), "no instance is idle"


def test_where_a_loss_must_be_survived_a_silent_instance_is_not_waited_for() -> None:
    """Its request goes to another as well, new ones go to others, until it answers again."""
    core = dispatcher(instance("a"), instance("b", 0.001), limits=Limits(survives=True))
    assert core.second_after_s == ROUTES.slo_latency_s
    (first,) = of(Send, core.offer(lost := request(1)))

    (second,) = of(Send, core.hedge(lost, ROUTES.slo_latency_s))
    assert second.instance != first.instance
    core.result(second.instance.id, 1, now_s=0.11)
    (third,) = of(Send, core.offer(request(2, arrived_s=0.2)))
    assert third.instance == second.instance


def test_where_a_loss_must_be_survived_a_slow_instance_keeps_its_requests() -> None:
    """It has answered another request meanwhile: a second one would only cost energy."""
    core = dispatcher(instance("a"), instance("b"), limits=Limits(survives=True))
    (first,) = of(Send, core.offer(request(1)))
    core.up(first.instance.id, Hello(2, b""))
    core.states[first.instance.id].heard_s = 0.05
    (pending,) = core.states[first.instance.id].in_flight.values()

    assert not core.hedge(pending, ROUTES.slo_latency_s)


def test_a_request_that_had_not_left_is_no_suspect_of_the_death() -> None:
    core = dispatcher(instance("a"))
    innocent = request(1)
    core.offer(innocent)

    for _ in range(3):
        assert not of(Fail, core.down(instance("a").id, unseen={1}))
        core.up(instance("a").id, Hello(1, b""))

    assert innocent.deaths == 0


def test_a_worker_that_drained_before_its_stream_ended_makes_no_suspect() -> None:
    core = dispatcher(instance("a"), instance("b"))
    moved = request(1)
    (sent,) = of(Send, core.offer(moved))
    core.draining(sent.instance.id)

    (again,) = of(Send, core.down(sent.instance.id))

    assert again.instance != sent.instance
    assert moved.deaths == 0


def test_the_refusal_of_the_only_instance_is_the_answer_at_the_first_try() -> None:
    """With its own status, message and time: the server behind knows best when it has room."""
    core = dispatcher(instance("a"))
    core.offer(request(1))
    full = ResourceExhausted("the server is full", retry_after_s=7.0)

    (failed,) = of(Fail, core.result(instance("a").id, 1, refusal=full))

    assert failed.error is full
    assert (full.message, full.retry_after_s) == ("the server is full", 7.0)


def test_each_instance_is_tried_once_whatever_its_room() -> None:
    """Not those that refused it: the last one, though it is busy; then the last refusal counts."""
    workers = [instance(name) for name in "abc"]
    core = dispatcher(*workers)
    tried = request(1)
    (sent,) = of(Send, core.offer(tried))
    for number in (2, 3):
        assert of(Send, core.offer(request(number)))
    met = [sent.instance]
    assert not core.result(sent.instance.id, 1, refusal=Unavailable("busy")), "others are full"
    while len(met) < 3:
        held = next(s for s in core.states.values() if s.in_flight and s.instance not in met)
        number = next(iter(held.in_flight))
        (sent,) = of(Send, core.result(held.instance.id, number))
        assert sent.pending is tried
        met.append(sent.instance)
        last = core.result(sent.instance.id, 1, refusal=Unavailable(f"no {len(met)}"))

    (failed,) = of(Fail, last)
    assert {each.id for each in met} == {each.id for each in workers}
    assert failed.error.message == "3 instances refused this request, the last: no 3"


def test_a_refused_request_ends_when_the_instances_that_are_left_go() -> None:
    core = dispatcher(instance("a"), instance("b"))
    (first,) = of(Send, core.offer(request(1)))
    core.offer(request(2))
    core.result(first.instance.id, 1, refusal=ResourceExhausted("full", retry_after_s=3.0))
    other = next(s.instance.id for s in core.states.values() if s.instance != first.instance)

    failed = of(Fail, core.down(other))

    assert [each.error.message for each in failed if each.pending.request.number == 1] == ["full"]


def test_an_instance_that_refuses_gets_requests_again_after_its_time() -> None:
    """Until then only where no other is free: a dead server is always free."""
    core = dispatcher(instance("a"), instance("b"))
    for key in core.states:
        core.credits(key, 4)
    (first,) = of(Send, core.offer(request(1)))
    refusal = Unavailable("gone", retry_after_s=5.0)
    core.result(first.instance.id, 1, refusal=refusal, now_s=1.0)

    def chosen(number: int, now_s: float) -> InstanceId:
        (sent,) = of(Send, core.offer(request(number, arrived_s=now_s)))
        key: InstanceId = sent.instance.id
        core.result(key, number, now_s=now_s)
        return key

    assert first.instance.id not in {chosen(10 + n, 2.0 + n / 10) for n in range(10)}
    assert first.instance.id in {chosen(30 + n, 6.1 + n / 10) for n in range(10)}


def test_a_server_that_is_full_is_passed_over_until_its_metrics_are_old() -> None:
    """Where no other is free it gets requests all the same: its queue is one more place to wait."""
    full, other = instance("a"), instance("b")
    core = dispatcher(full, other)
    core.note_load(full.id, (0, 3.0), now_s=0.0)

    sent = [of(Send, core.offer(request(n, arrived_s=1.0)))[0].instance.id for n in (1, 2)]
    assert sent == [other.id, full.id]
    for number, key in enumerate(sent, 1):
        core.result(key, number, now_s=4.0)
    both = {of(Send, core.offer(request(n, arrived_s=4.0)))[0].instance.id for n in (3, 4)}
    assert both == {full.id, other.id}


def test_an_instance_that_leaves_the_table_finishes_what_it_holds_and_then_closes() -> None:
    core = dispatcher(instance("a"))
    core.offer(request(1))

    swapped = core.swap(replace(ROUTES, instances=(instance("b"),)))
    answered = core.result(instance("a").id, 1)

    assert not of(Release, swapped)
    assert [type(decision) for decision in answered] == [Reply, Release]


def test_an_instance_that_returns_to_the_table_in_time_keeps_its_stream() -> None:
    core = dispatcher(instance("a"))
    core.offer(request(1))
    core.swap(ROUTES)

    back = core.swap(replace(ROUTES, instances=(instance("a"),)))

    assert not of(Dial, back)
    assert not of(Release, core.result(instance("a").id, 1))


def test_the_abandoned_request_keeps_its_credit_until_the_worker_says_so() -> None:
    """A worker that still computes is not free, even where the caller has gone."""
    core = dispatcher(instance("a"))
    gone = request(1)
    core.offer(gone)
    core.offer(request(2))

    assert of(Withdraw, core.cancel(gone))
    assert core.queue_depth == 1
    (sent,) = of(Send, core.result(instance("a").id, 1))
    assert sent.pending.request.number == 2


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
    (answered, _) = core.result(instance("a").id, 1)

    assert isinstance(failed.error, NotFound)
    assert isinstance(answered, Reply)


@pytest.mark.parametrize(
    ("ends", "reason"), [("refuses", "UNAVAILABLE"), ("dies", "MODEL_REMOVED")]
)
def test_what_a_retired_models_last_instance_leaves_undone_fails_at_once(
    ends: str, reason: str
) -> None:
    """No instance will serve it, so it does not wait for its deadline."""
    core = dispatcher(instance("a"))
    core.offer(request(1))
    core.retire()
    last = instance("a").id

    after = core.down(last) if ends == "dies" else core.result(last, 1, refusal=BUSY)

    (failed,) = of(Fail, after)
    assert failed.error.reason == reason
    assert len(of(Release, after)) == 1
    assert not core.occupied


def test_a_model_that_returns_keeps_what_its_last_instance_leaves_undone() -> None:
    core = dispatcher(instance("a"))
    core.offer(request(1))
    core.retire()
    core.swap(replace(ROUTES, instances=(instance("a"), instance("b"))))

    assert not of(Fail, core.down(instance("a").id))
    assert core.queue_depth == 1


@pytest.mark.parametrize("event", ["up", "draining", "down"])
def test_events_of_an_unknown_instance_are_ignored(event: str) -> None:
    core = dispatcher()
    key = instance("stranger").id

    assert not (core.up(key, Hello(1, b"")) if event == "up" else getattr(core, event)(key))


def test_of_two_instances_that_have_a_request_the_first_answers_and_the_other_is_withdrawn() -> (
    None
):
    core = dispatcher(instance("a"), instance("b"))
    slow = request(1)
    (first,) = of(Send, core.offer(slow))
    (second,) = of(Send, core.hedge(slow))
    assert second.instance != first.instance
    assert not core.hedge(slow), "two are enough"

    ended = core.result(second.instance.id, 1)

    assert ended == [Reply(second.instance, slow), Withdraw(first.instance, slow)]
    assert not core.result(first.instance.id, 1), "it is answered once"


def test_a_hedge_survives_the_instance_that_had_the_request_first() -> None:
    core = dispatcher(instance("a"), instance("b"))
    slow = request(1)
    (first,) = of(Send, core.offer(slow))
    (second,) = of(Send, core.hedge(slow))

    assert not core.down(first.instance.id)

    assert of(Reply, core.result(second.instance.id, 1))


def test_a_hedge_that_lost_may_leave_while_the_other_instance_answers() -> None:
    """Its result, which came too late, ends its part: nothing is withdrawn from it at the end."""
    core = dispatcher(instance("a"), instance("b"))
    slow = request(1)
    (first,) = of(Send, core.offer(slow))
    (second,) = of(Send, core.hedge(slow))
    assert core.part(second.instance.id, 1) is slow
    assert not core.result(first.instance.id, 1)

    core.swap(replace(ROUTES, instances=(second.instance,)))

    assert of(Reply, core.result(second.instance.id, 1))


def test_no_request_is_hedged_on_an_instance_that_others_wait_for() -> None:
    core = dispatcher(instance("a"))
    slow = request(1)
    core.offer(slow)
    core.offer(request(2))

    assert not core.hedge(slow)


def test_retries_are_a_share_of_the_requests_and_a_few() -> None:
    """A worker that fails again and again makes no storm; one that drains costs nothing."""
    core = dispatcher(instance("a"), limits=Limits(retry_share=0.1, retry_burst=2))

    def fall(number: int, *, drained: bool = False) -> list[Fail]:
        failing = request(number)
        core.offer(failing)
        if drained:
            core.draining(instance("a").id)
        failed: list[Fail] = of(Fail, core.down(instance("a").id))
        core.up(instance("a").id, Hello(1, b""))
        core.result(instance("a").id, number)
        return failed

    fates = [bool(fall(number)) for number in range(1, 31)]
    drained = [bool(fall(number, drained=True)) for number in range(31, 61)]

    assert fates[:2] == [False, False]
    assert 25 <= fates.count(True) <= 26
    assert not any(drained)


def test_a_request_that_cannot_be_answered_in_time_is_refused_with_the_time_it_lacks() -> None:
    core = dispatcher(instance("a"))
    for number in range(1, 9):  # 0.1 s each, one at a time
        begun_s = 0.1 * number
        core.offer(request(number, arrived_s=begun_s, deadline_s=begun_s + 1))
        core.result(instance("a").id, number, now_s=begun_s + 0.1)
    core.offer(request(9, arrived_s=1.0, deadline_s=9.0))
    core.offer(request(10, arrived_s=1.0, deadline_s=9.0))

    with pytest.raises(ResourceExhausted) as refused:
        core.offer(request(11, arrived_s=1.0, deadline_s=1.25))

    assert refused.value.reason == "OVERLOADED"
    assert refused.value.retry_after_s == pytest.approx(0.05)  # two before it, and its own 0.1 s
    assert core.overload.refused == 1


def test_a_request_that_waited_in_vain_ends_without_taking_a_credit() -> None:
    core = dispatcher(instance("a"))
    core.offer(request(1))
    core.offer(request(2, arrived_s=0.0, deadline_s=0.5))
    core.offer(request(3))

    done = core.result(instance("a").id, 1, now_s=0.6)

    assert [type(each) for each in done] == [Reply, Fail, Send]
    assert [each.pending.request.number for each in done] == [1, 2, 3]  # type: ignore[union-attr]  # as above


@pytest.mark.parametrize(
    ("limits", "byte_budget", "reason"),
    [
        (Limits(max_queue=1), ByteBudget(), "QUEUE_FULL"),
        (Limits(max_queue_mib=10 / 2**20), ByteBudget(), "QUEUE_BYTES_FULL"),
        (Limits(), ByteBudget(limit_bytes=10), "MEMORY_FULL"),
    ],
)
def test_what_waits_is_bounded_in_requests_and_in_bytes(
    limits: Limits, byte_budget: ByteBudget, reason: str
) -> None:
    core = Dispatcher(ROUTES, limits, byte_budget)
    core.offer(request(1, body=b"8 bytes."))

    with pytest.raises(ResourceExhausted) as refused:
        core.offer(request(2, body=b"8 bytes."))

    assert refused.value.reason == reason
    assert refused.value.retry_after_s
    assert byte_budget.used_bytes == 8
    core.retire()
    assert byte_budget.used_bytes == 0


def test_an_urgent_request_takes_the_place_of_the_last_in_a_full_queue() -> None:
    core = Dispatcher(replace(ROUTES, discipline="edf"), Limits(max_queue=2))
    relaxed, later = request(1, deadline_s=9.0), request(2, deadline_s=8.0)
    urgent = request(3, deadline_s=1.0)
    core.offer(relaxed)
    core.offer(later)

    (failed,) = of(Fail, core.offer(urgent))

    assert failed.pending is relaxed
    assert failed.error.reason == "QUEUE_FULL"
    assert core.queue_depth == 2


def test_the_next_batch_is_handed_out_only_where_no_instance_has_a_credit_left() -> None:
    """Two instances with two credits each hold four, then the next four; the ninth waits."""
    a, b = instance("a"), instance("b")
    core = dispatcher(a, b)
    for each in (a, b):
        core.up(each.id, Hello(2, b"", in_batches=True))
    for number in range(1, 10):
        core.offer(request(number))
        held = [len(core.states[each.id].in_flight) for each in (a, b)]
        assert max(held) <= 2 or min(held) >= 2
    assert (core.in_flight, core.queue_depth, core.slots) == (8, 1, 8)


def test_one_that_runs_requests_one_by_one_is_given_no_next_batch() -> None:
    core = dispatcher(instance("a"))
    core.offer(request(1))
    core.offer(request(2))
    assert (core.in_flight, core.queue_depth) == (1, 1)


def test_a_prompt_returns_to_the_instance_that_has_read_it_until_that_restarts() -> None:
    """The other instance has been idle for longer."""
    text = bytes(10 * BLOCK_BYTES)
    raw = len(text).to_bytes(4, "little") + text
    body = pb.ModelInferRequest(raw_input_contents=[raw]).SerializeToString()
    workers = [instance("a"), instance("b")]
    core = dispatcher(*workers)
    core.swap(replace(ROUTES, instances=tuple(workers), instance_choice="prefix"))
    chosen = []
    for number in range(3):
        (sent,) = of(Send, core.offer(request(number, body=body)))
        core.result(sent.instance.id, number)
        chosen.append(sent.instance.segment_id)
    (state,) = (each for each in core.states.values() if each.instance.segment_id == chosen[0])
    known = len(state.prefixes)
    core.down(state.instance.id)
    core.up(state.instance.id, Hello(1, b""))

    assert len(set(chosen)) == 1
    assert (known, len(core.states[state.instance.id].prefixes)) == (10, 0)


def test_predictions_of_answers_that_are_being_generated_balance_instances() -> None:
    """Both hold one answer; the next request goes where 10 tokens are left, not 1,000."""
    workers = [instance("a"), instance("b")]
    core = dispatcher(*workers)
    for worker in workers:
        core.credits(worker.id, 4)
    core.swap(replace(ROUTES, instances=tuple(workers), instance_choice="predicted_tokens"))
    first, second = request(1), request(2)
    (one,) = of(Send, core.offer(first))
    (other,) = of(Send, core.offer(second))
    assert core.uses_length(first)

    core.predict_length(first, 9, 1000.0)
    core.predict_length(second, 0, 10.0)
    chosen = [of(Send, core.offer(request(number)))[0].instance for number in (3, 4)]

    assert one.instance != other.instance
    assert chosen == [other.instance] * 2


def test_many_who_wait_for_the_best_variant_do_not_keep_others_from_the_next_best() -> None:
    """The number does not matter: what they wait for is not what the last one requires."""
    core = dispatcher(
        instance("a", accuracy=0.9), instance("b", accuracy=0.95), limits=Limits(max_queue=500)
    )
    core.offer(request(1, accuracy_floor=0.95))
    held = request(2, accuracy_floor=0.9)
    core.offer(held)
    for number in range(3, 203):
        core.offer(request(number, accuracy_floor=0.95))
    core.offer(last := request(203, accuracy_floor=0.9))
    (sent,) = of(Send, core.result(instance("a").id, 2))

    assert sent.pending is last


def test_consolidated_fills_one_instance_as_far_as_the_objective_allows_and_then_the_next() -> None:
    """The second instance has nothing to do until the first would be too slow."""
    core, workers = dispatcher(), (instance("a"), instance("b"))
    routes = replace(core.routes, instances=workers, instance_choice="consolidated")
    core.swap(replace(routes, slo_token_s=0.0195))
    for each in workers:
        core.up(each.id, Hello(16, b""))
        for answers in (1, 2, 3, 4):
            core.states[each.id].token_times.add(Held(answers, 0), 0.0, 0.01 + 1e-3 * answers)

    for number in range(8):
        core.offer(request(number))

    assert [len(core.states[each.id].in_flight) for each in workers] == [6, 2]


def test_consolidated_without_an_objective_of_tokens_uses_all_instances_alike() -> None:
    """Nothing says how many are too many: a policy may be changed at run time."""
    core, workers = dispatcher(), (instance("a"), instance("b"))
    core.swap(replace(core.routes, instances=workers, instance_choice="consolidated"))
    for each in workers:
        core.up(each.id, Hello(16, b""))

    for number in range(8):
        core.offer(request(number))

    assert [len(core.states[each.id].in_flight) for each in workers] == [4, 4]

"""Speculative shortest job first in the dispatcher: what holds for everybody, and who gains."""

from bisect import bisect_right
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Discipline
from services.router.core.dispatch.decisions import Decision, Send
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import Instance, Limits, ModelRoutes, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.boost import DECILES
from services.router.core.worker_port import Hello
from tests.support.examples import examples

BOUND_S = 5.0
INSTANCE = Instance("a:1", "a", "text", "v", 1.0, share=1.0, credits=1)
ROUTES = ModelRoutes("text", 1e9, 95.0, "shares", (INSTANCE,), "ssjf")
SERVICES_S = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.0, 6.5, 8.0)


@dataclass(frozen=True)
class Job:
    """Attributes: arrival_s, service_s, length_class and delay_s of its prediction (inf: never)."""

    arrival_s: float
    service_s: float
    length_decile: int
    delay_s: float = 0.0


@dataclass
class Course:
    """The fate of jobs. Attributes: starts_s (by job), order (of starts)."""

    starts_s: list[float]
    order: list[int]


times = st.integers(0, 400).map(lambda tenths: tenths / 10)
jobs_of_any_kind = st.lists(
    st.builds(
        Job,
        arrival_s=times,
        service_s=st.integers(1, 60).map(lambda tenths: tenths / 10),
        length_decile=st.integers(0, DECILES - 1),
        delay_s=st.one_of(st.just(0.0), st.just(inf), st.integers(0, 20).map(float)),
    ),
    max_size=40,
).map(lambda jobs: sorted(jobs, key=lambda job: job.arrival_s))


@examples(0.4)
@given(jobs_of_any_kind, st.integers(1, 3))
def test_no_request_is_overtaken_by_one_that_came_more_than_the_bound_later(
    jobs: list[Job], slots: int
) -> None:
    """Whatever is predicted, rightly or wrongly, whenever it comes, however many are served."""
    order = served(jobs, slots).order

    assert sorted(order) == list(range(len(jobs)))
    for place, first in enumerate(order):
        for later in order[place + 1 :]:
            assert jobs[first].arrival_s <= jobs[later].arrival_s + BOUND_S


@examples(0.4)
@given(jobs_of_any_kind)
def test_every_request_starts_at_the_latest_when_one_that_came_the_bound_later_would_in_turn(
    jobs: list[Job],
) -> None:
    """One server: a wait is at most the bound and what first come, first served then makes wait."""
    course = served(jobs, slots=1)
    in_turn = served(jobs, slots=1, discipline="fcfs")
    arrivals = [job.arrival_s for job in jobs]

    for job, start_s in zip(jobs, course.starts_s, strict=True):
        stand_in_s = job.arrival_s + BOUND_S
        last = bisect_right(arrivals, stand_in_s) - 1
        free_s = in_turn.starts_s[last] + jobs[last].service_s
        assert start_s <= max(stand_in_s, free_s) + 1e-9


@examples(0.4)
@given(jobs_of_any_kind, st.integers(1, 3))
def test_without_predictions_everybody_is_served_in_turn(jobs: list[Job], slots: int) -> None:
    untold = [replace(job, delay_s=inf) for job in jobs]

    assert served(untold, slots).order == list(range(len(jobs)))


@pytest.mark.parametrize("discipline", ["fcfs", "edf", "priority"])
def test_other_disciplines_do_not_look_at_predictions(discipline: Discipline) -> None:
    core = taught(discipline)
    first, second = request(10_000, core.now_s), request(10_001, core.now_s)
    core.offer(blocker(core))
    for each in (first, second):
        core.offer(each)
    core.predict_length(second, 0)

    assert finish(core, 9_999)[0].pending is first


def test_a_prediction_that_comes_late_still_counts_while_its_request_waits() -> None:
    core = taught()
    core.offer(blocker(core))
    long, short = request(10_000, core.now_s), request(10_001, core.now_s)
    for each in (long, short):
        core.offer(each)
    core.predict_length(long, 4)
    core.predict_length(short, 0)

    assert finish(core, 9_999)[0].pending is short
    core.predict_length(long, 0)  # a repeated prediction after the request's end does no harm
    assert finish(core, short.request.number)[0].pending is long


def test_a_prediction_for_a_request_that_is_served_or_gone_harms_nothing() -> None:
    core = taught()
    core.offer(held := blocker(core))
    core.offer(gone := request(10_000, core.now_s))
    core.cancel(gone)

    core.predict_length(held, 2)
    core.predict_length(gone, 0)

    assert core.queue_depth == 0
    assert finish(core, held.request.number) == []


def test_what_answers_took_is_learned_and_short_ones_gain() -> None:
    """At 90 % load, with three of four classes right, from no knowledge on."""
    rng = Random(1)
    jobs: list[Job] = []
    now_s = 0.0
    for _ in range(4_000):
        now_s += rng.expovariate(0.9 / fmean(SERVICES_S))
        true = rng.randrange(DECILES)
        predicted = true if rng.random() < 0.75 else rng.randrange(DECILES)
        jobs.append(Job(now_s, SERVICES_S[true], predicted))

    in_turn = served(jobs, 1, discipline="fcfs", bound_s=200.0)
    boosted = served(jobs, 1, bound_s=200.0)

    assert mean_s(jobs, boosted) < 0.85 * mean_s(jobs, in_turn)


def test_what_waited_for_a_dead_worker_teaches_nothing() -> None:
    """Such waits say nothing of how long the queue is."""
    core, twin = taught(bound_s=1e6), taught(bound_s=1e6)
    for number in range(40):
        core.offer(unlucky := request(number, core.now_s))
        core.predict_length(unlucky, 0)
        core.down(INSTANCE.id)
        core.up(INSTANCE.id, Hello(1, b""))
        core.result(INSTANCE.id, number, now_s=core.now_s + 1e4)
    serve(core, range(10_000, 10_050))
    serve(twin, range(10_000, 10_050))

    assert boost_s(core, 0) == boost_s(twin, 0) > 0


# ---- the world ---------------------------------------------------------------------------------


def served(
    jobs: list[Job], slots: int, *, discipline: Discipline = "ssjf", bound_s: float = BOUND_S
) -> Course:
    """Run jobs through a dispatcher that has been taught."""
    core = taught(discipline, slots, bound_s)
    begin_s = core.now_s
    requests = [request(number, begin_s + job.arrival_s) for number, job in enumerate(jobs)]
    events: list[tuple[float, int, int]] = []  # when, kind, job: an arrival, a word, an end
    for number, job in enumerate(jobs):
        heappush(events, (begin_s + job.arrival_s, 1, number))
        if job.delay_s < inf:
            heappush(events, (begin_s + job.arrival_s + job.delay_s, 2, number))
    course = Course([0.0] * len(jobs), [])
    while events:
        now_s, kind, number = heappop(events)
        decisions: list[Decision] = []
        if kind == 0:
            decisions = core.result(INSTANCE.id, number, now_s=now_s)
        elif kind == 1:
            decisions = core.offer(requests[number])
        else:
            core.predict_length(requests[number], jobs[number].length_decile)
        for sent in (each.pending.request.number for each in decisions if isinstance(each, Send)):
            course.starts_s[sent] = now_s - begin_s
            course.order.append(sent)
            heappush(events, (now_s + jobs[sent].service_s, 0, sent))
    return course


def taught(discipline: Discipline = "ssjf", slots: int = 1, bound_s: float = BOUND_S) -> Dispatcher:
    """Return an idle dispatcher that has served jobs of all classes, their lengths predicted."""
    limits = Limits(max_queue=10**6, fair_clients=False, overtaking_s=bound_s)
    core = Dispatcher(replace(ROUTES, discipline=discipline), limits)
    core.swap(core.routes)
    core.up(INSTANCE.id, Hello(slots, b""))
    serve(core, range(-250, 0))
    return core


def serve(core: Dispatcher, numbers: range) -> None:
    """Serve jobs of all classes that came together, their lengths predicted."""
    for number in numbers:
        core.offer(made := request(number, core.now_s))
        core.predict_length(made, number % DECILES)
    held = [number for number in numbers if number in core.states[INSTANCE.id].in_flight]
    while held:
        first = held.pop(0)
        ended_s = core.now_s + SERVICES_S[first % DECILES]
        decisions = core.result(INSTANCE.id, first, now_s=ended_s)
        held += [each.pending.request.number for each in decisions if isinstance(each, Send)]


def boost_s(core: Dispatcher, length_decile: int) -> float:
    """Return what a class would be boosted by now."""
    early = request(-10_000, core.now_s)
    core.predict_length(early, length_decile)
    return early.boost_s


def request(number: int, arrived_s: float) -> PendingRequest:
    return PendingRequest(Request(number, "text", b"", arrived_s, inf))


def blocker(core: Dispatcher) -> PendingRequest:
    return request(9_999, core.now_s)


def finish(core: Dispatcher, number: int) -> list[Send]:
    """End a request; return who goes next."""
    decisions = core.result(INSTANCE.id, number, now_s=core.now_s)
    return [each for each in decisions if isinstance(each, Send)]


def mean_s(jobs: list[Job], course: Course) -> float:
    return fmean(
        start_s + job.service_s - job.arrival_s
        for job, start_s in zip(jobs, course.starts_s, strict=True)
    )

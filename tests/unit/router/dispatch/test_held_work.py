"""The sums over what an instance holds are those that adding up gives, whatever has happened."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import InstanceChoice
from services.kit.errors import Unavailable
from services.kit.request_cost import Cost, Usage
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.held_work import COUNT_AGAIN
from services.router.core.instance_state import InstanceState
from services.router.core.model import Request
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Hello
from tests.support.router.dispatching import dispatcher, instance

NAMES = ("a", "b", "c")
CHOICES: tuple[InstanceChoice, ...] = ("shares", "carbondis", "prefix", "consolidated")


def text(number: int, body_bytes: int, max_tokens: int) -> PendingRequest:
    body = b"x" * body_bytes
    return PendingRequest(Request(number, "digits", body, 0.0, 1e6, max_tokens=max_tokens))


def texts(choice: InstanceChoice) -> Dispatcher:
    """A dispatcher of a language model whose instances state the size of their KV cache."""
    core = dispatcher(*map(instance, NAMES))
    core.swap(replace(core.routes, instance_choice=choice, slo_token_s=1.0, slo_first_token_s=9.0))
    for name in NAMES:
        core.up(instance(name).id, Hello(4, b"", kv_tokens_per_credit=300))
    return core


def check_sums(state: InstanceState) -> None:
    held, work = list(state.in_flight.values()), state.work
    assert work.body_bytes == sum(len(each.request.body) for each in held)
    unanswered = [len(each.request.body) for each in held if not each.answering]
    assert work.unanswered_bytes == sum(unanswered)
    assert work.kv_tokens == sum(each.kv_tokens(work.usual_tokens) for each in held)
    assert state.usual_tokens / COUNT_AGAIN <= work.usual_tokens <= state.usual_tokens * COUNT_AGAIN


class Course:
    """Events in any order, each chosen by a number."""

    def __init__(self, choice: InstanceChoice) -> None:
        self.core = texts(choice)
        self.known: list[PendingRequest] = []
        self.events: list[Callable[[Random], object]] = [
            self.offer,
            self.offer,
            self.part,
            self.part,
            self.predict,
            self.finish,
            self.cancel,
            self.hedge,
            self.fall,
            self.policy,
        ]

    def offer(self, draw: Random) -> None:
        lengths = draw.randrange(800), draw.choice([0, 0, 40, 500])
        self.known.append(text(len(self.known) + 1, *lengths))
        self.core.offer(self.known[-1])

    def held(self, draw: Random) -> tuple[InstanceState, PendingRequest] | None:
        pairs = [(s, each) for s in self.core.states.values() for each in s.in_flight.values()]
        return draw.choice(pairs) if pairs else None

    def part(self, draw: Random) -> None:
        if found := self.held(draw):
            for _ in range(draw.randrange(1, 80)):
                self.core.part(found[0].instance.id, found[1].request.number)

    def finish(self, draw: Random) -> None:
        if found := self.held(draw):
            state, pending = found
            usage = Usage(10, draw.randrange(1, 400), 0.1, 0.01)
            cost = Cost(0.0, 0.0, "model", 0.0, 0.0, 1, 1, usage)
            key, number = state.instance.id, pending.request.number
            refusal = Unavailable("busy") if draw.random() < 0.2 else None
            self.core.result(key, number, refusal=refusal, cost=cost)

    def predict(self, draw: Random) -> None:
        if self.known:
            self.core.predict_length(draw.choice(self.known), 5, draw.uniform(1.0, 400.0))

    def cancel(self, draw: Random) -> None:
        if self.known:
            self.core.cancel(draw.choice(self.known))

    def hedge(self, draw: Random) -> None:
        if self.known:
            self.core.hedge(draw.choice(self.known))

    def fall(self, draw: Random) -> None:
        key = instance(draw.choice(NAMES)).id
        self.core.down(key)
        self.core.up(key, Hello(4, b"", kv_tokens_per_credit=300))

    def policy(self, draw: Random) -> None:
        routes = replace(self.core.routes, instance_choice=draw.choice(CHOICES))
        self.core.swap(routes)


@pytest.mark.parametrize("choice", CHOICES)
@given(seed=st.integers(0, 2**32), events=st.integers(1, 120))
def test_sums_equal_those_of_adding_up_after_every_event(
    choice: InstanceChoice, seed: int, events: int
) -> None:
    draw = Random(seed)
    course = Course(choice)
    for _ in range(events):
        draw.choice(course.events)(draw)
        for state in course.core.states.values():
            check_sums(state)


def test_what_is_held_counts_from_the_first_choice_on_that_depends_on_prompts() -> None:
    """Other models' requests are not counted: it would cost them time."""
    core = dispatcher(instance("a"))
    state = core.states[instance("a").id]
    core.offer(text(1, 100, 40))
    assert state.work.body_bytes == 0

    core.swap(replace(core.routes, instance_choice="prefix"))

    assert state.work.body_bytes == 100
    core.result(instance("a").id, 1)
    check_sums(state)

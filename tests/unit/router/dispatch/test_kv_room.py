"""Texts go where the model's KV cache has room for them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import InstanceChoice
from services.router.core.dispatch.decisions import Decision, Send
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import Request
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Hello
from tests.support.router.dispatching import dispatcher, instance, of

NAMES, CREDITS, TOKENS = ("a", "b"), 4, 100
CHOICES = pytest.mark.parametrize("choice", ["shares", "carbondis"])
"""The plan's shares, and a policy that weighs instances."""


def text(number: int, prompt_bytes: int, max_tokens: int) -> PendingRequest:
    body = b"x" * prompt_bytes
    return PendingRequest(Request(number, "digits", body, 0.0, 1e6, max_tokens=max_tokens))


def cached(*names: str, choice: InstanceChoice = "shares") -> Dispatcher:
    """A dispatcher of instances with room for 400 tokens and for four requests each."""
    core = dispatcher(*map(instance, names))
    core.swap(replace(core.routes, instance_choice=choice))
    for name in names:
        core.up(instance(name).id, Hello(CREDITS, b"", kv_tokens_per_credit=TOKENS))
    return core


def sent(decisions: list[Decision]) -> list[int]:
    return [decision.pending.request.number for decision in of(Send, decisions)]


@CHOICES
def test_a_text_waits_in_order_until_the_cache_has_room_although_credits_are_free(
    choice: InstanceChoice,
) -> None:
    """200 tokens each: two fit into an instance; a later one of 60 does not overtake."""
    core = cached("a", choice=choice)
    began = [core.offer(text(number, 200, 150)) for number in (1, 2, 3)] + [
        core.offer(text(4, 40, 50))
    ]
    ended = core.result(instance("a").id, 1)

    assert [sent(each) for each in began] == [[1], [2], [], []]
    assert sent(ended) == [3]
    assert core.queue_depth == 1


def test_a_predicted_length_counts_instead_of_the_most_that_it_may_be() -> None:
    core = cached("a")
    texts = [text(number, 0, 300) for number in (1, 2, 3)]
    for each in texts[:2]:
        each.predict_tokens(100.0)

    assert [sent(core.offer(each)) for each in texts] == [[1], [2], []]


def test_a_text_that_fits_nowhere_goes_to_an_instance_that_holds_none() -> None:
    """The server may still find room, or say why not: the router's count is an estimate."""
    core = cached("a")
    first, long = core.offer(text(1, 40, 10)), core.offer(text(2, 40, 1000))

    assert (sent(first), sent(long)) == ([1], [])
    assert sent(core.result(instance("a").id, 1)) == [2]


LENGTHS = st.tuples(st.integers(0, 800), st.integers(1, 500))


@CHOICES
@given(lengths=st.lists(LENGTHS, min_size=1, max_size=20))
def test_no_instance_holds_more_than_its_cache_and_every_text_is_answered(
    choice: InstanceChoice, lengths: list[tuple[int, int]]
) -> None:
    """A text that is longer than the cache runs alone."""
    core = cached(*NAMES, choice=choice)
    for number, (prompt_bytes, max_tokens) in enumerate(lengths, 1):
        core.offer(text(number, prompt_bytes, max_tokens))
    answered = 0
    while core.in_flight:
        for state in core.states.values():
            held = [
                len(p.request.body) / 4 + p.request.max_tokens for p in state.in_flight.values()
            ]
            assert len(held) <= 1 or sum(held) <= CREDITS * TOKENS
        state = max(core.states.values(), key=lambda each: len(each.in_flight))
        core.result(state.instance.id, next(iter(state.in_flight)))
        answered += 1

    assert answered == len(lengths)

"""Choice of the instance that takes the next request."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import grpc_service_pb2 as pb
from services.router.core.balancing.instance_choice import (
    HELD_WEIGHT,
    Choose,
    by_prefix,
    by_shares,
    fewest_tokens_left,
    idle_longest,
    least_expected_completion,
)
from services.router.core.instance_state import InstanceState
from services.router.core.latency_estimator import LatencyEstimator
from services.router.core.model import Instance, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.prefix_cache import BLOCK_BYTES
from tests.support.examples import examples


def state(
    name: str, share: float = 1.0, *, held: int = 0, credits_: int = 4, used: int = 0
) -> InstanceState:
    made = InstanceState(Instance(f"{name}:1", name, "m", "v", 0.9, share, credits_))
    made.credits, made.up, made.used_at = credits_, True, used
    for number in range(held):
        made.in_flight[number] = PendingRequest(Request(number, "m", b"", 0.0, 1.0))
    return made


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=8).map(
        lambda parts: [part / sum(parts) for part in parts]
    ),
    st.integers(1, 400),
)
def test_after_any_number_of_requests_every_instance_has_its_share_to_within_one(
    shares: list[float], rounds: int
) -> None:
    states = [state(str(i), share) for i, share in enumerate(shares)]

    chosen = Counter(by_shares(states).instance.segment_id for _ in range(rounds))

    for i, share in enumerate(shares):
        assert abs(chosen[str(i)] - share * rounds) <= len(shares)


def test_weighted_round_robin_is_smooth_as_in_nginx() -> None:
    """Weights 5, 1, 1 give a a b a c a a: the heavy instance is not taken five times in a row."""
    states = [state("a", 5 / 7), state("b", 1 / 7), state("c", 1 / 7)]

    assert "".join(by_shares(states).instance.segment_id for _ in range(7)) == "aabacaa"


def test_instances_without_any_share_take_turns() -> None:
    states = [state("a", 0.0), state("b", 0.0)]

    assert "".join(by_shares(states).instance.segment_id for _ in range(4)) == "abab"


def test_the_instance_idle_longest_comes_first_then_the_least_loaded() -> None:
    busy, fresh, rested = state("busy", held=1), state("fresh", used=9), state("rested", used=3)
    half = state("half", held=2)

    assert idle_longest([busy, fresh, rested]) is rested
    assert idle_longest([half, busy]) is busy


def paced(name: str, unit_s: float, *, held: int = 0) -> InstanceState:
    made = state(name, held=held)
    made.latency.observe(unit_s, 1)
    return made


def test_the_instance_that_would_answer_first_is_chosen() -> None:
    """(in flight + 1) x service time / parallelism: 3 x 10 ms before 1 x 40 ms."""
    slow, quick, busy = paced("slow", 0.04), paced("quick", 0.01, held=2), paced("b", 0.01, held=4)

    assert least_expected_completion([slow, quick, busy]) is quick


def test_an_idle_instance_without_an_estimate_is_tried_with_one_request() -> None:
    known, new = paced("known", 0.01), state("new")
    assert least_expected_completion([known, new]) is new

    new.in_flight[7] = PendingRequest(Request(7, "m", b"", 0.0, 1.0))

    assert least_expected_completion([known, new]) is known


def test_an_instance_that_was_slow_once_is_tried_again() -> None:
    slow, quick = paced("slow", 0.1), paced("quick", 0.01)

    tried = [least_expected_completion([slow, quick]) is slow for _ in range(2000)]

    assert tried.index(True) > 100
    assert tried.count(True) < 1000


@examples(0.25)
@given(st.lists(st.integers(1, 8), min_size=300, max_size=300), st.floats(0.001, 0.1))
def test_the_pace_follows_what_each_request_adds_whatever_the_batches_are(
    places: list[int], each_s: float
) -> None:
    """An instance that takes `each_s` per request it holds has that as its unit time."""
    latency = LatencyEstimator()
    for place in places:
        latency.observe(each_s * place, place)

    assert latency.unit_s == pytest.approx(each_s)
    assert each_s <= latency.hold_s <= 8 * each_s
    assert latency.soonest_s <= latency.hold_s <= latency.likely_s


# ---- prefixes ----------------------------------------------------------------------------------


def prompted(number: int, text: bytes) -> PendingRequest:
    raw = len(text).to_bytes(4, "little") + text
    body = pb.ModelInferRequest(model_name="m", raw_input_contents=[raw]).SerializeToString()
    return PendingRequest(Request(number, "m", body, 0.0, 1.0))


def test_a_prompt_goes_where_its_beginning_is_known() -> None:
    states = [state("a"), state("b"), state("c")]
    states[1].prefixes.add(prompted(1, b"x" * 20 * BLOCK_BYTES).prefix())

    chosen = by_prefix(states, prompted(2, b"x" * 19 * BLOCK_BYTES + b"y" * BLOCK_BYTES))

    assert chosen is states[1]


def test_a_known_beginning_is_worth_ten_times_as_much_that_the_instance_holds() -> None:
    """20 blocks known outweigh 100 that it holds, not 300."""
    knows, idle = state("a"), state("b")
    knows.prefixes.add(prompted(1, b"x" * 20 * BLOCK_BYTES).prefix())
    prompt = prompted(2, b"x" * 20 * BLOCK_BYTES)

    knows.hold(prompted(7, b"z" * 100 * BLOCK_BYTES), counted=True)
    little = by_prefix([knows, idle], prompt)
    knows.hold(prompted(8, b"z" * 200 * BLOCK_BYTES), counted=True)
    much = by_prefix([knows, idle], prompt)

    assert (little, much) == (knows, idle)


@examples(0.3)
@given(st.lists(st.integers(0, 3), min_size=8, max_size=200))
def test_one_prefix_that_all_share_does_not_starve_instances(users: list[int]) -> None:
    """Of any number of requests that stay no instance holds more than eleven more than another."""
    states = [state(str(i), credits_=100) for i in range(4)]
    for number, user in enumerate(users):
        text = b"s" * 4 * BLOCK_BYTES + bytes([user]) * 4 * BLOCK_BYTES
        pending = prompted(number, text)
        chosen = by_prefix(states, pending)
        chosen.prefixes.add(pending.prefix())
        chosen.hold(pending, counted=True)
        chosen.used_at = number + 1

    held = [len(each.in_flight) for each in states]
    assert max(held) <= min(held) + 1 / HELD_WEIGHT + 1


# ---- tokens ------------------------------------------------------------------------------------


def answer(number: int, predicted: float = 0.0, made: int = 0, most: int = 0) -> PendingRequest:
    pending = PendingRequest(Request(number, "m", b"", 0.0, 1.0, max_tokens=most))
    pending.predict_tokens(predicted)
    pending.responses = made
    return pending


@pytest.mark.parametrize(
    ("held", "left"),
    [
        (answer(1), 100.0),
        (answer(1, predicted=300), 300.0),
        (answer(1, predicted=300, most=20), 20.0),
        (answer(1, most=4096), 100.0),
        (answer(1, predicted=300, made=250), 50.0),
        (answer(1, predicted=300, made=900), 1.0),
    ],
)
def test_tokens_left_are_those_predicted_or_usual_up_to_the_most_less_those_made(
    held: PendingRequest, left: float
) -> None:
    assert held.tokens_left(usual_tokens=100.0) == left


def test_few_long_answers_count_for_more_than_many_short_ones() -> None:
    """Two answers of 500 tokens against four of 50; with a tenth of the share, for less."""
    long, short = state("long"), state("short")
    long.in_flight = {n: answer(n, predicted=500) for n in range(2)}
    short.in_flight = {n: answer(n, predicted=50) for n in range(4)}
    small = state("small", 0.1)
    small.in_flight = {9: answer(9, predicted=50)}

    assert fewest_tokens_left([long, short]) is short
    assert fewest_tokens_left([small, short]) is short


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 900), st.integers(0, 50)),
        min_size=1,
        max_size=40,
    )
)
def test_no_token_is_counted_of_answers_that_ended_or_went_elsewhere(
    events: list[tuple[int, int, int]],
) -> None:
    """After any course of answers, cancellations and deaths instances that are idle count 0."""
    states = [state(str(i), credits_=100) for i in range(3)]
    for number, (event, predicted, made) in enumerate(events):
        chosen = fewest_tokens_left(states)
        chosen.in_flight[number] = pending = answer(number, predicted, made)
        chosen.used_at = number + 1
        if event == 0:
            pending.end()  # its caller has gone, and the worker has not said so yet
        elif event == 1:
            del chosen.in_flight[number]
    left = [sum(each.tokens_left(1.0) for each in s.in_flight.values()) for s in states]

    best = states.index(fewest_tokens_left(states))
    assert left[best] == min(left)
    for each in states:
        each.in_flight.clear()
    assert fewest_tokens_left(states).used_at == min(each.used_at for each in states)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=200))
def test_the_usual_length_lies_within_those_seen(lengths: list[int]) -> None:
    learning = state("a")
    for length in lengths:
        learning.learn_length(length)

    assert min(lengths) <= learning.usual_tokens <= max(lengths) + 1e-9


@pytest.mark.parametrize("choose", [idle_longest, least_expected_completion])
def test_requests_of_others_at_a_server_count_as_its_own(choose: Choose) -> None:
    """Two routers, or clients past the gateway, load one server: the other one goes first."""
    loaded, held = state("a", used=1), state("b", held=1, used=2)
    assert choose([loaded, held]) is loaded
    loaded.others = 3
    assert choose([loaded, held]) is held

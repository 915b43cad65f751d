"""Answers' token times, and how many answers an instance can generate within an objective."""

import math

import pytest

from services.router.core.token_times import Held, TokenObjective, TokenTimes

OBJECTIVE = TokenObjective(first_token_s=1.0, token_s=0.02, headroom=1.0)


def learned(most: int, *, fixed_s: float = 0.01, read_s: float = 1e-4) -> TokenTimes:
    """Of up to `most` answers at a time: steps take `fixed_s` and 1 ms per answer."""
    times = TokenTimes()
    for answers in list(range(1, most + 1)) * 10:
        times.add(Held(answers, 100 * answers), read_s * 100 * answers, fixed_s + 1e-3 * answers)
    return times


def test_there_is_room_up_to_the_answers_at_which_the_line_meets_the_objective() -> None:
    """Steps of 10 ms and 1 ms per answer: ten answers at a time take 20 ms."""
    times = learned(8)
    room = [answers for answers in range(1, 16) if times.has_room(Held(answers, 0), OBJECTIVE)]
    assert room[-1] in (9, 10)


def test_prompts_that_wait_take_room_as_answers_do() -> None:
    """A byte takes 0.1 ms to read: ten thousand take the whole second."""
    times = learned(8)
    assert times.has_room(Held(4, 9_000), OBJECTIVE)
    assert not times.has_room(Held(4, 11_000), OBJECTIVE)


@pytest.mark.parametrize(("waiting", "room"), [(1, True), (4, True), (6, False)])
def test_more_prompts_that_wait_are_later_than_the_line_by_as_much_more(
    waiting: int, room: bool
) -> None:
    """A prompt of 1,000 bytes takes 80 or 120 ms: six may take 0.84 s where the line has 0.6."""
    times = TokenTimes()
    for number in range(400):
        prompts = 1 + number % 3 // 2  # one or two that wait
        read_s = 0.1 * prompts * (0.8 if number % 2 else 1.2)
        times.add(Held(2, 1000 * prompts), read_s, 0.01)

    objective = OBJECTIVE._replace(first_token_s=0.8)
    assert times.has_room(Held(2, 1000 * waiting), objective) == room


def test_a_new_instance_has_room_for_one_and_then_for_twice_what_was_measured() -> None:
    """A burst does not fill an instance of which nothing is known."""
    assert TokenTimes().has_room(Held(1, 10**9), OBJECTIVE)
    assert not TokenTimes().has_room(Held(2, 0), OBJECTIVE)
    times = learned(2)
    assert times.has_room(Held(4, 0), OBJECTIVE)
    assert not times.has_room(Held(5, 0), OBJECTIVE)


def test_a_lower_clock_is_noticed() -> None:
    """Steps that become twice as long leave room for fewer, and for as many when they end."""
    times = learned(8)
    for answers in list(range(1, 9)) * 40:
        times.add(Held(answers, 0), 0.0, 2 * (0.01 + 1e-3 * answers))
    assert not times.has_room(Held(6, 0), OBJECTIVE)
    for answers in list(range(1, 9)) * 40:
        times.add(Held(answers, 0), 0.0, 0.01 + 1e-3 * answers)
    assert times.has_room(Held(6, 0), OBJECTIVE)


@pytest.mark.parametrize("token_s", [0.0, math.inf, math.nan])
def test_an_answer_without_a_time_between_tokens_teaches_nothing(token_s: float) -> None:
    times = TokenTimes()
    times.add(Held(9, 0), 0.1, token_s)
    assert not times.has_room(Held(2, 0), OBJECTIVE)

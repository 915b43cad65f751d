"""The order in which the answers of one stream leave."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from services.router.frontend.response_sequencer import Turn, Turns

# One request: is it ordered, how many answers has it.
REQUESTS = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=8)


def taken(turns: Turns) -> list[tuple[Turn, bytes | None]]:
    found = []
    while (departure := turns.next()) is not None:
        found.append((departure.turn, departure.body))
    return found


@given(REQUESTS, st.data())
def test_every_answer_leaves_once_and_in_its_place(
    requests: list[tuple[bool, int]], data: st.DataObject
) -> None:
    """In any interleaving: ordered requests leave one after another, others at once."""
    turns = Turns()
    opened = [turns.open(ordered=ordered) for ordered, _ in requests]
    left = dict(enumerate(answers for _, answers in requests))
    gone: list[tuple[Turn, bytes | None]] = []
    while left:
        number = data.draw(st.sampled_from(sorted(left)))
        turn, answers = opened[number], requests[number][1]
        if left[number]:
            body = b"%d.%d" % (number, answers - left[number])
            turns.put(turn, body)
            left[number] -= 1
        else:
            turns.end(turn)
            del left[number]
        now = taken(turns)
        gone += now
        if not turn.ordered:
            assert [which for which, _ in now] == [turn]

    bodies = defaultdict(list)
    for turn, left_body in gone:
        bodies[opened.index(turn)].append(left_body)
    for number, (_, answers) in enumerate(requests):
        assert bodies[number] == [*(b"%d.%d" % (number, n) for n in range(answers)), None]
    ordered = [opened.index(turn) for turn, _ in gone if turn.ordered]
    assert ordered == sorted(ordered)
    assert turns.held_bytes == 0


def test_answers_that_may_not_leave_are_counted_until_they_do() -> None:
    turns = Turns()
    first, second = turns.open(ordered=True), turns.open(ordered=True)

    turns.put(second, b"late")
    assert turns.next() is None
    assert turns.held_bytes == 4

    turns.end(first)
    turns.end(second)
    assert taken(turns) == [(first, None), (second, b"late"), (second, None)]
    assert turns.held_bytes == 0

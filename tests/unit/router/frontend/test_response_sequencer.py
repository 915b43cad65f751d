"""The order in which the answers of one stream leave."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from services.router.frontend.response_sequencer import ResponseSequencer, StreamedRequest

# One request: is it ordered, how many answers has it.
REQUESTS = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=8)


def taken(sequencer: ResponseSequencer) -> list[tuple[StreamedRequest, bytes | None]]:
    found = []
    while (departure := sequencer.next()) is not None:
        found.append(departure)
    return found


@given(REQUESTS, st.data())
def test_every_answer_leaves_once_and_in_its_place(
    requests: list[tuple[bool, int]], data: st.DataObject
) -> None:
    """In any interleaving: ordered requests leave one after another, others at once."""
    sequencer = ResponseSequencer()
    opened = [sequencer.open(ordered=ordered) for ordered, _ in requests]
    left = dict(enumerate(answers for _, answers in requests))
    gone: list[tuple[StreamedRequest, bytes | None]] = []
    while left:
        number = data.draw(st.sampled_from(sorted(left)))
        streamed, answers = opened[number], requests[number][1]
        if left[number]:
            body = b"%d.%d" % (number, answers - left[number])
            sequencer.put(streamed, body)
            left[number] -= 1
        else:
            sequencer.end(streamed)
            del left[number]
        now = taken(sequencer)
        gone += now
        if not streamed.ordered:
            assert [which for which, _ in now] == [streamed]

    bodies = defaultdict(list)
    for streamed, left_body in gone:
        bodies[opened.index(streamed)].append(left_body)
    for number, (_, answers) in enumerate(requests):
        assert bodies[number] == [*(b"%d.%d" % (number, n) for n in range(answers)), None]
    ordered = [opened.index(streamed) for streamed, _ in gone if streamed.ordered]
    assert ordered == sorted(ordered)
    assert sequencer.held_bytes == 0


def test_answers_that_may_not_leave_are_counted_until_they_do() -> None:
    sequencer = ResponseSequencer()
    first, second = sequencer.open(ordered=True), sequencer.open(ordered=True)

    sequencer.put(second, b"late")
    assert sequencer.next() is None
    assert sequencer.held_bytes == 4

    sequencer.end(first)
    sequencer.end(second)
    assert taken(sequencer) == [(first, None), (second, b"late"), (second, None)]
    assert sequencer.held_bytes == 0

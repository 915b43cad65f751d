"""The queue keeps its discipline's order whatever leaves early or comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.router.domain import Request
from services.router.queueing import Queue, first_come_first_served


def request(number: int, deadline_s: float = 1.0) -> Request:
    return Request(number, "m", b"", arrived_s=0.0, deadline_s=deadline_s)


@given(st.permutations(range(30)), st.sets(st.integers(0, 29)), st.sets(st.integers(0, 29)))
def test_what_stays_comes_out_in_order_of_arrival_however_it_went_in(
    order: list[int], removed: set[int], returned: set[int]
) -> None:
    queue = Queue(first_come_first_served)
    requests = {number: request(number) for number in order}
    for number in order:
        queue.push(requests[number])
    for number in removed:
        queue.remove(requests[number])
    for number in removed & returned:
        queue.push(requests[number])

    stays = sorted((set(order) - removed) | (removed & returned))

    assert len(queue) == len(stays)
    assert [entry.number for entry in queue.clear()] == stays


@given(st.lists(st.floats(0, 10), max_size=20))
def test_another_discipline_is_another_key(deadlines_s: list[float]) -> None:
    queue = Queue(lambda entry: entry.deadline_s)
    for number, deadline_s in enumerate(deadlines_s):
        queue.push(request(number, deadline_s))

    assert [entry.deadline_s for entry in queue.clear()] == sorted(deadlines_s)


def test_requests_that_left_early_do_not_stay_in_memory() -> None:
    """With no instance at all, callers come and give up for ever."""
    queue = Queue()
    for number in range(10_000):
        gone = request(number)
        queue.push(gone)
        queue.remove(gone)

    assert len(queue._heap) <= 32

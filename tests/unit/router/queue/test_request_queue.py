"""The queue keeps its order whatever leaves early, comes back or changes; clients take turns."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Discipline
from services.router.core.model import Request
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.request_queue import (
    DISCIPLINES,
    ByteBudget,
    RequestQueue,
    by_arrival,
    by_deadline,
)


def request(
    number: int, deadline_s: float = 1.0, priority: int = 0, client: str = ""
) -> PendingRequest:
    made = Request(number, "m", b"12345", 0.0, deadline_s, priority=priority, client=lambda: client)
    return PendingRequest(made)


REQUESTS = st.lists(
    st.tuples(st.floats(0, 10), st.integers(0, 200), st.sampled_from("abc")), max_size=20
).map(lambda drawn: [request(number, *each) for number, each in enumerate(drawn)])


@given(st.permutations(range(30)), st.sets(st.integers(0, 29)), st.sets(st.integers(0, 29)))
def test_what_stays_comes_out_in_order_of_arrival_however_it_went_in(
    order: list[int], removed: set[int], returned: set[int]
) -> None:
    """Pushes, removals and returns in any order change no order of service."""
    queue = RequestQueue(by_arrival)
    requests = {number: request(number) for number in order}
    for number in order:
        queue.push(requests[number])
    for number in removed:
        queue.remove(requests[number])
    for number in removed & returned:
        queue.push(requests[number])

    stays = sorted((set(order) - removed) | (removed & returned))

    assert len(queue) == len(stays)
    assert [entry.request.number for entry in queue.clear()] == stays


@given(
    REQUESTS,
    st.lists(st.tuples(st.sampled_from(sorted(DISCIPLINES)), st.booleans()), min_size=1),
)
def test_another_order_loses_and_doubles_nothing(
    requests: list[PendingRequest], orders: list[tuple[Discipline, bool]]
) -> None:
    """Whatever orders come one after the other, the last one holds, and all are there once."""
    byte_budget = ByteBudget()
    queue = RequestQueue(by_arrival, byte_budget=byte_budget)
    for each in requests:
        queue.push(each)

    for discipline, fair in orders:
        queue.arrange(DISCIPLINES[discipline], fair=fair)

    assert queue.size_bytes == byte_budget.used_bytes == 5 * len(requests)
    served = queue.clear()
    assert sorted(each.request.number for each in served) == [
        each.request.number for each in requests
    ]
    discipline, fair = orders[-1]
    for client in "abc" if fair else [None]:
        mine = [each for each in served if client in (None, each.client())]
        key = DISCIPLINES[discipline]
        assert mine == sorted(mine, key=lambda each: (key(each), each.request.number))
    assert queue.size_bytes == byte_budget.used_bytes == 0


@given(REQUESTS)
def test_how_many_go_before_a_request_is_known_before_it_waits(
    requests: list[PendingRequest],
) -> None:
    """The rank that admission sees is the rank that the request gets."""
    queue = RequestQueue(by_deadline)
    for each in requests[1:]:
        queue.push(each)
    if not requests:
        return
    ahead = queue.ahead(requests[0])

    queue.push(requests[0])

    assert queue.clear().index(requests[0]) == ahead


@pytest.mark.parametrize(
    ("waiting", "client", "ahead"),
    [
        ("abbbbbccccc", "a", 5),
        ("abbbbbccccc", "d", 3),
        ("aabbb", "a", 5),
        ("abc", "b", 3),
        ("", "a", 0),
    ],
)
def test_where_clients_take_turns_at_most_so_many_turns_go_before_a_request(
    waiting: str, client: str, ahead: int
) -> None:
    """Each client gets as many turns as the request's own one needs, and no more than wait."""
    queue = RequestQueue()
    queue.arrange(by_arrival, fair=True)
    for number, each in enumerate(waiting):
        queue.push(request(number, client=each))

    assert queue.ahead(request(99, client=client)) == ahead


@given(REQUESTS)
def test_where_clients_take_turns_no_more_go_before_a_request_than_was_known(
    requests: list[PendingRequest],
) -> None:
    """The bound that admission sees is kept, whatever the others' keys are."""
    queue = RequestQueue()
    queue.arrange(by_deadline, fair=True)
    for each in requests[1:]:
        queue.push(each)
    if not requests:
        return
    ahead = queue.ahead(requests[0])
    queue.push(requests[0])

    assert queue.clear().index(requests[0]) <= ahead


@given(REQUESTS, st.booleans())
def test_the_last_request_of_the_client_that_has_the_most_makes_room(
    requests: list[PendingRequest], fair: bool
) -> None:
    """One of another client only where that client keeps as many; of the same, the later one."""
    queue = RequestQueue()
    queue.arrange(by_deadline, fair=fair)
    for each in requests[1:]:
        queue.push(each)
    if not requests:
        return
    new, flows = requests[0], dict[str, list[PendingRequest]]()
    for each in sorted(requests[1:], key=lambda one: (by_deadline(one), one.order)):
        flows.setdefault(each.client() if fair else "", []).append(each)
    mine = flows.get(new.client() if fair else "", [])
    most = max(map(len, flows.values()), default=0)

    found = queue.behind(new)

    if most > len(mine) + 1:
        assert found in [flow[-1] for flow in flows.values() if len(flow) == most]
    elif mine and (by_deadline(mine[-1]), mine[-1].order) >= (by_deadline(new), new.order):
        assert found is mine[-1]
    else:
        assert found is None


def test_a_priority_of_zero_is_the_default_of_a_hundred() -> None:
    """Triton's clients send 0 for none; lower numbers go first."""
    queue = RequestQueue(DISCIPLINES["priority"])
    for number, priority in enumerate((101, 0, 99, 1)):
        queue.push(request(number, priority=priority))

    assert [each.request.number for each in queue.clear()] == [3, 2, 1, 0]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60), st.integers(1, 60))
def test_no_client_that_waits_is_more_than_one_request_behind_another(
    clients: list[str], served: int
) -> None:
    """Start-time fair queueing: the bound of a whole request holds at any time."""
    queue = RequestQueue()
    queue.arrange(by_arrival, fair=True)
    for number, client in enumerate(clients):
        queue.push(request(number, client=client))
    had: Counter[str] = Counter(dict.fromkeys(clients, 0))

    for _ in range(min(served, len(clients))):
        had[queue.pop().client()] += 1
        waiting = {each.client() for each in queue}
        if waiting:
            assert max(had.values()) - min(had[client] for client in waiting) <= 1


def test_turns_are_not_saved_up_by_a_client_that_was_away() -> None:
    """A client that comes late shares from then on, and no more."""
    queue = RequestQueue()
    queue.arrange(by_arrival, fair=True)
    for number in range(10):
        queue.push(request(number, client="a"))
    for _ in range(5):
        queue.pop()
    for number in range(10, 15):
        queue.push(request(number, client="b"))

    assert "".join(queue.pop().client() for _ in range(6)) in {"bababa", "ababab"}


def test_a_full_queue_makes_room_at_the_expense_of_the_client_that_has_the_most() -> None:
    """The last request of the longest flow goes, never one of a modest client."""
    queue = RequestQueue()
    queue.arrange(by_arrival, fair=True)
    for number in range(5):
        queue.push(request(number, client="greedy"))

    displaced = queue.behind(request(9, client="modest"))

    assert displaced is not None
    assert (displaced.request.number, displaced.client()) == (4, "greedy")
    assert queue.behind(request(9, client="greedy")) is None


def test_the_client_is_only_identified_where_clients_take_turns() -> None:
    """Finding out costs something, and hardly ever matters."""
    offered: list[int] = []

    def anonymous(number: int) -> PendingRequest:
        def client() -> str:
            offered.append(number)
            return f"c{number}"

        return PendingRequest(Request(number, "m", b"", 0.0, 1.0, client=client))

    queue = RequestQueue(by_arrival)
    queue.push(anonymous(1))
    assert not offered
    queue.arrange(by_arrival, fair=True)
    queue.push(anonymous(2))

    assert offered == [1, 2]
    assert [each.client() for each in queue.clear()] == ["c1", "c2"]


@pytest.mark.parametrize("fair", [False, True])
def test_requests_that_left_early_do_not_stay_in_memory(fair: bool) -> None:
    """With no instance at all, callers come and give up for ever, each under another name."""
    queue = RequestQueue()
    queue.arrange(by_arrival, fair=fair)
    queue.push(request(0, client="patient"))
    for number in range(1, 5_000):
        gone = request(number, client=f"client {number}")
        queue.push(gone)
        queue.remove(gone)

    kept = (queue.places, queue._flows, queue._turns)
    assert [len(each) for each in kept] == [1, 1, 1]
    assert len(queue._served) <= 1024

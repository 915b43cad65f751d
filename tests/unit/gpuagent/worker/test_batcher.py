"""Dynamic batching: never split, never starved, never waiting to fill."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.worker.core.batcher import Batcher, Next, Queued
from services.kit.errors import InvalidArgument, ResourceExhausted


@dataclass(frozen=True, slots=True, eq=False)
class Waiting(Queued):
    """A request. Attributes: number."""

    number: int


REQUESTS = st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["a", "b", None])), max_size=30)


def _batcher(requests: list[tuple[int, str | None]], batch_size: int) -> Batcher[Waiting]:
    batcher = Batcher[Waiting](batch_size, bound=100)
    for number, (items, kind) in enumerate(requests):
        batcher.add(Waiting(kind, items, math.inf, number))
    return batcher


def _drain(batcher: Batcher[Waiting]) -> list[Next[Waiting]]:
    taken = []
    while len(batcher.queue):
        taken.append(batcher.take(0.0))
    return taken


@given(REQUESTS, st.integers(1, 8))
def test_every_request_runs_exactly_once(
    requests: list[tuple[int, str | None]], batch_size: int
) -> None:
    ran = [p.number for taken in _drain(_batcher(requests, batch_size)) for p in taken.batch]

    assert sorted(ran) == list(range(len(requests)))


@given(REQUESTS, st.integers(1, 8))
def test_a_batch_fits_unless_one_request_alone_does_not(
    requests: list[tuple[int, str | None]], batch_size: int
) -> None:
    for taken in _drain(_batcher(requests, batch_size)):
        assert sum(p.items for p in taken.batch) <= batch_size or len(taken.batch) == 1


@given(REQUESTS, st.integers(1, 8))
def test_only_equal_kinds_share_a_batch_and_no_kind_means_alone(
    requests: list[tuple[int, str | None]], batch_size: int
) -> None:
    for taken in _drain(_batcher(requests, batch_size)):
        kinds = {p.kind for p in taken.batch}
        assert len(kinds) == 1
        assert kinds != {None} or len(taken.batch) == 1


@given(REQUESTS, st.integers(1, 8))
def test_the_oldest_goes_first_and_each_kind_keeps_its_order(
    requests: list[tuple[int, str | None]], batch_size: int
) -> None:
    batcher = _batcher(requests, batch_size)
    waiting = list(range(len(requests)))
    ran: list[int] = []
    while len(batcher.queue):
        batch = [p.number for p in batcher.take(0.0).batch]
        assert batch[0] == waiting[0]
        waiting = [number for number in waiting if number not in batch]
        ran += batch
    for kind in ("a", "b", None):
        of_kind = [number for number in ran if requests[number][1] == kind]
        assert of_kind == sorted(of_kind)


@given(REQUESTS, st.integers(1, 8))
def test_a_batch_is_as_full_as_order_allows(
    requests: list[tuple[int, str | None]], batch_size: int
) -> None:
    """The next request of the batch's kind did not fit."""
    batcher = _batcher(requests, batch_size)
    waiting = list(enumerate(requests))
    while len(batcher.queue):
        batch = batcher.take(0.0).batch
        waiting = [entry for entry in waiting if entry[0] not in {p.number for p in batch}]
        kind, items = batch[0].kind, sum(p.items for p in batch)
        following = [size for _, (size, other) in waiting if other == kind and kind is not None]
        assert not following or items + following[0] > batch_size


@given(st.lists(st.floats(0.0, 10.0), max_size=20), st.floats(0.0, 10.0))
def test_expired_requests_never_start(deadlines_s: list[float], now_s: float) -> None:
    batcher = Batcher[Waiting](4, bound=100)
    for number, deadline_s in enumerate(deadlines_s):
        batcher.add(Waiting("a", 1, deadline_s, number))

    taken = batcher.take(now_s)

    assert all(pending.deadline_s > now_s for pending in taken.batch)
    assert {p.number for p in taken.expired} == {
        number for number, deadline_s in enumerate(deadlines_s) if deadline_s <= now_s
    }


def test_one_request_that_waits_is_taken_at_once() -> None:
    assert len(_batcher([(1, "a")], 8).take(-math.inf).batch) == 1


def test_removed_requests_do_not_run() -> None:
    batcher = _batcher([(1, "a")] * 4, 8)

    removed = batcher.remove(lambda waiting: waiting.number % 2 == 0)
    assert [waiting.number for waiting in removed] == [0, 2]
    assert [p.number for p in batcher.take(0.0).batch] == [1, 3]


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    batcher = Batcher[Waiting](1, bound=1)
    batcher.add(Waiting("a", 1, math.inf, 0))

    with pytest.raises(ResourceExhausted) as refusal:
        batcher.add(Waiting("a", 1, math.inf, 1))
    assert refusal.value.retry_after_s is not None


def test_a_batch_size_below_one_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="batch_size must be >= 1"):
        Batcher[Waiting](0, bound=1)

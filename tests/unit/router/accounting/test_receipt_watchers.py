"""Receipts for those who watch: sampled, bounded, and none made without a watcher."""

import random
from contextlib import ExitStack

import pytest

from services.kit.errors import InvalidArgument, ResourceExhausted
from services.kit.request_cost import Cost
from services.router.core.accounting.account import Account, Outcome
from services.router.core.accounting.receipt_watchers import (
    MOST_KEPT,
    MOST_WATCHERS,
    Receipt,
    ReceiptWatchers,
)
from services.router.core.model import Instance, ModelRoutes, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Result

SMALL = Instance("h:1", "s1", "m", "small", 0.8, 0.7, 4, zone="US-CAL", pue=1.2)
LARGE = Instance("h:2", "s2", "m", "large", 0.9, 0.3, 4, zone="US-CAL", pue=1.2)
RECEIPT = Receipt(1.0, SMALL, 0.1, 0.0, None, None)


def watchers() -> ReceiptWatchers:
    return ReceiptWatchers(random.Random(1).random)


def test_an_answers_receipt_equals_the_one_sent_to_its_caller() -> None:
    everybody = watchers()
    account = Account(
        ModelRoutes("m", 0.1, 95.0, "shares"), {"US-CAL": 300.0}.get, (60.0,), everybody
    )
    pending = PendingRequest(Request(1, "m", b"", 1.0, deadline_s=31.0), assigned_s=1.25)
    cost = Cost(3.6e6, 0.0, "model", queue_s=0.5, compute_s=0.25, batch_size=1)
    with everybody.watching(1.0) as watcher:
        account.answer(pending, Outcome(SMALL, Result(1, cost=cost), 3.0))

    assert watcher.take() == ([Receipt(3.0, SMALL, 2.0, 0.75, cost, 360.0, 360.0)], 0)


def test_a_watcher_gets_only_receipts_of_its_model_and_variant() -> None:
    everybody = watchers()
    with everybody.watching(1.0, "m", "large") as one, everybody.watching(1.0, "other") as other:
        for instance in (SMALL, LARGE):
            everybody.offer(RECEIPT._replace(instance=instance))

    assert [each.instance for each in one.take()[0]] == [LARGE]
    assert other.take() == ([], 0)


def test_a_sample_is_its_share_of_the_receipts() -> None:
    """Of 100,000, a tenth within five standard deviations; none of them is left out."""
    everybody, seen = watchers(), 0
    with everybody.watching(0.1) as watcher:
        for _ in range(1000):
            for _ in range(100):
                everybody.offer(RECEIPT)
            receipts, left_out = watcher.take()
            seen += len(receipts)
            assert not left_out

    assert seen == pytest.approx(10_000, abs=5 * 95)


def test_what_a_slow_watcher_misses_is_counted_and_not_kept() -> None:
    everybody = watchers()
    with everybody.watching(1.0) as watcher:
        for _ in range(MOST_KEPT + 3):
            everybody.offer(RECEIPT)
        first, left_out = watcher.take()

        assert (len(first), left_out) == (MOST_KEPT, 3)
        assert watcher.take() == ([], 0)


def test_no_watcher_is_left_when_the_last_has_gone() -> None:
    everybody = watchers()
    with everybody.watching(1.0):
        pass

    assert not everybody.present


@pytest.mark.parametrize("sample", [0.0, -0.1, 1.1, float("nan")])
def test_a_sample_outside_0_to_1_is_refused(sample: float) -> None:
    with (
        pytest.raises(InvalidArgument, match="sample: must be > 0 and <= 1"),
        watchers().watching(sample),
    ):
        pass


def test_one_watcher_too_many_is_refused() -> None:
    everybody = watchers()
    with ExitStack() as stack:
        for _ in range(MOST_WATCHERS):
            stack.enter_context(everybody.watching(1.0))
        with pytest.raises(ResourceExhausted, match="watch receipts already"):
            stack.enter_context(everybody.watching(1.0))

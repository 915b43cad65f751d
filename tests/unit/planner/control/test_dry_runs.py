"""Proposals live ten minutes, and only for what they were made for."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from services.kit.errors import FailedPrecondition, NotFound
from services.planner.control.dry_runs import MAX_DRY_RUNS, Basis, DryRuns
from tests.support.planner.plans import plan
from tests.support.virtual_clock import VirtualClock

SPEC = SegmentSpec("s-1", "digits", "small", 8, 2, "GPU-a", Placement("1g.5gb", 3))
NOW = Basis(7, {("node-a", "GPU-a"): "a100-40gb"}, frozenset({SPEC}))
PLAN = plan(0, [])
START = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_dry_run_is_returned_as_often_as_requested() -> None:
    proposals = DryRuns(VirtualClock(START))
    proposal_id = proposals.keep(PLAN, NOW)

    assert [proposals.plan(proposal_id, NOW) for _ in range(2)] == [PLAN, PLAN]


def test_an_id_that_was_never_given_out_is_not_found() -> None:
    with pytest.raises(NotFound, match="no proposal 'made-up'"):
        DryRuns(VirtualClock(START)).plan("made-up", NOW)


def test_the_oldest_make_room_for_the_newest() -> None:
    proposals = DryRuns(VirtualClock(START))
    ids = [
        proposals.keep(plan(0, [], reason=str(number)), NOW) for number in range(MAX_DRY_RUNS + 1)
    ]

    with pytest.raises(NotFound):
        proposals.plan(ids[0], NOW)
    kept = [proposals.plan(each, NOW).reason for each in ids[1:]]
    assert kept == [str(number) for number in range(1, MAX_DRY_RUNS + 1)]


@pytest.mark.parametrize(
    ("now", "change"),
    [
        (replace(NOW, version=8), "plan 8 took the place of plan 7"),
        (replace(NOW, gpus={}), "the fleet has changed"),
        (replace(NOW, segments=frozenset()), "what runs has changed"),
    ],
)
def test_a_proposal_for_what_is_no_more_is_refused_with_the_reason(now: Basis, change: str) -> None:
    proposals = DryRuns(VirtualClock(START))
    proposal_id = proposals.keep(PLAN, NOW)

    with pytest.raises(FailedPrecondition, match=f"{change} since the dry run"):
        proposals.plan(proposal_id, now)
    assert proposals.plan(proposal_id, NOW) == PLAN, "should things be again as they were"

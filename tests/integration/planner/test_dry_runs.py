"""Proposals end when their time is over."""

from datetime import UTC, datetime

import pytest

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from services.kit.errors import NotFound
from services.planner.control.dry_runs import LIFETIME_S, Basis, DryRuns
from tests.support.planner.plans import plan
from tests.support.virtual_clock import VirtualClock

SPEC = SegmentSpec("s-1", "digits", "small", 8, 2, "GPU-a", Placement("1g.5gb", 3))
NOW = Basis(7, {("node-a", "GPU-a"): "a100-40gb"}, frozenset({SPEC}))
PLAN = plan(0, [])
START = datetime(2026, 3, 1, tzinfo=UTC)


async def test_a_proposal_ends_after_ten_minutes() -> None:
    clock = VirtualClock(START)
    proposals = DryRuns(clock)
    proposal_id = proposals.keep(PLAN, NOW)
    await clock.advance(LIFETIME_S - 1)
    assert proposals.plan(proposal_id, NOW) == PLAN
    await clock.advance(1)

    with pytest.raises(NotFound, match="proposals end after 10 minutes") as caught:
        proposals.plan(proposal_id, NOW)
    assert caught.value.field == "proposal_id"

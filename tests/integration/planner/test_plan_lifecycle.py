"""Rollouts over a database that cannot be written for a while."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cinquefoil.planner.v1.records import Plan
from services.kit.errors import Unavailable
from services.planner.core.cycle.plan_lifecycle import PlanLifecycle


async def test_a_rollout_that_cannot_be_written_is_unfinished() -> None:
    """Else what runs would be as planned, and the plan would be ROLLING until another cause."""

    async def set_state(*_: object) -> None:
        raise Unavailable("database or disk is full")

    environment: Any = SimpleNamespace(store=SimpleNamespace(set_state=set_state))
    lifecycle = PlanLifecycle(cast(Any, None), environment)
    lifecycle.standing.wanted = wanted = cast(Any, object())
    plan = Plan(version=7)

    with pytest.raises(Unavailable):
        await lifecycle.roll_out(plan, cast(Any, SimpleNamespace(seen=None)))

    assert lifecycle.standing.unfinished == (plan, wanted)

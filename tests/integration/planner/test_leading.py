"""When a planner that leads gives way: in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.planner.adapters.store import Deposed, Store
from services.planner.control.leading import Leading
from services.planner.core.lease import ACTS_S, EXPIRES_S, RENEW_S, Tenure
from tests.support.virtual_loop import LoopClock, VirtualLoop, run


@dataclass
class Database:
    """A lease that takes some turns of the loop to be read or written, or never is.

    Attributes:
        turns: Turns of the loop per access; infinite where the database is away.
        beats: Renewals.
    """

    turns: float
    beats: int = 0
    leadership: Any = field(default_factory=lambda: SimpleNamespace(tenure=Tenure(0.0)))

    async def check_lease(self) -> None:
        turn = 0
        while turn < self.turns:
            turn += 1
            await asyncio.sleep(0 if self.turns < float("inf") else 1.0)

    async def renew(self) -> None:
        await self.check_lease()
        self.beats += 1


def leading(database: Database) -> Leading:
    """Return the leading of a planner that has others stand by."""
    return Leading(cast(Store, database), LoopClock(), steps_down=True)


async def hold_up(turn_s: float) -> None:
    """Make each turn of the loop last `turn_s`, for ever."""
    while True:
        loop = cast(VirtualLoop, asyncio.get_running_loop())
        loop._jumping.now_s += turn_s
        await asyncio.sleep(0)


def test_a_planner_whose_loop_is_held_up_leads_on() -> None:
    """To step down would have the fleet join the next planner, which met the same."""

    async def led() -> None:
        database = Database(turns=15)
        keeping = asyncio.create_task(leading(database).keep())
        holding = asyncio.create_task(hold_up(0.5))
        await asyncio.sleep(60.0)
        assert not keeping.done()
        assert database.beats > 3
        holding.cancel()
        keeping.cancel()

    run(led())


def test_a_planner_that_lost_its_database_gives_way() -> None:
    """Another may lead from `EXPIRES_S` on: subscribers must not wait for this one."""

    async def led() -> float:
        with pytest.raises(Deposed, match="not renewed in time"):
            await leading(Database(turns=float("inf"))).keep()
        return asyncio.get_running_loop().time()

    assert run(led()) <= ACTS_S + RENEW_S + EXPIRES_S

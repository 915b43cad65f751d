"""Lines of the earliest deadline pass the gate first."""

import asyncio
from datetime import UTC, datetime

from services.batch.adapters.router_client import Answer
from services.batch.core.admission import Admission
from services.batch.core.releases import Releases
from services.batch.runtime.gate import Gate
from tests.support.virtual_loop import LoopClock, run

SOON, LATER = (datetime(2026, 6, 1, hours, tzinfo=UTC) for hours in (1, 23))


def test_a_short_batch_is_not_held_up_by_lines_of_a_long_one_that_came_before() -> None:
    """The long one's lines wait for room; the short one's come later, and are sent before them."""
    entered: list[datetime] = []

    async def enter(gate: Gate, due: datetime) -> None:
        if await gate.enter(16, due, lambda: False):
            entered.append(due)

    async def main() -> int:
        gate = Gate("m", Admission(16), Releases(), LoopClock())
        await asyncio.sleep(0)
        await gate.enter(16, LATER, lambda: False)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(enter(gate, LATER))
            await asyncio.sleep(0.1)
            wanted = gate.wants(SOON)
            tasks.create_task(enter(gate, SOON))
            await asyncio.sleep(0.1)
            for _ in range(32):
                gate.leave(Answer(0, 200, b"", None, 1.0), 1.0)
                await asyncio.sleep(1.0)
        return wanted

    wanted = run(main())

    assert wanted >= 0
    assert entered == [SOON, LATER]

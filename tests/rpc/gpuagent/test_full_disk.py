"""An agent whose disk is full or damaged: it serves, refuses with the reason, and recovers."""

from pathlib import Path

import pytest

from services.kit.errors import ServiceError, leaves
from tests.support.full_disk import fill, small_disk
from tests.support.gpuagent.agent_service import (
    GPU,
    NODE,
    agent,
    deployment,
    planning,
    segment_spec,
)
from tests.support.worker.worker_process import infer_request, routed


async def test_on_a_full_disk_the_agent_serves_restarts_refuses_steps_and_recovers(
    tmp_path: Path, model: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with planning() as (planner, port):
            settings = deployment(disk, model, f"127.0.0.1:{port}")
            async with agent(settings):
                await planner.until(lambda: planner.node.name == NODE)
                assert (await planner.create("3g.20gb", 0)).ok
                assert (await planner.start(segment_spec())).ok
                segment = planner.segment("s-1")
                assert segment is not None
                ballast = fill(disk)

                refused = await planner.create("1g.5gb", 4)
                before_j = planner.energy[GPU].total_j
                async with routed(segment.endpoints[0]) as router:
                    answers = [
                        (await router.infer(infer_request([[0, 0]]), number)).status
                        for number in range(10)
                    ]
                await planner.until(lambda: planner.energy[GPU].total_j > before_j)

            async with agent(settings):
                await planner.until(lambda: len(planner.first_requests) == 2)
                again = await planner.create("1g.5gb", 4)
                ballast.unlink()
                taken = await planner.create("1g.5gb", 4)

    assert answers == [""] * 10
    assert "No space left on device; nothing was changed" in refused.message
    assert (again.ok, taken.ok) == (False, True)


@pytest.mark.parametrize("name", ["journal.json", "change.json", "mig_modes.json"])
async def test_a_damaged_journal_stops_the_agent_with_what_to_do(
    tmp_path: Path, model: Path, name: str
) -> None:
    settings = deployment(tmp_path, model, "127.0.0.1:1")
    (tmp_path / NODE).mkdir()
    (tmp_path / NODE / name).write_bytes(bytes(100))

    async def run() -> None:
        try:
            async with agent(settings):
                pytest.fail("it runs")
        except* ServiceError as stopped:
            raise next(iter(leaves(stopped))) from None

    with pytest.raises(ServiceError, match=rf"{name} is damaged .*; remove it to start over"):
        await run()

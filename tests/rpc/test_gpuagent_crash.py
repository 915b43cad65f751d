"""An agent that is killed: traffic goes on, its successor takes over, and no joule is forgotten."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from cinquefoil.gpuagent.v1 import inventory_pb2
from services.kit.deployment import Deployment
from tests.rpc.agent_world import (
    GPU,
    NODE,
    Planner,
    deployment,
    placement,
    planning,
    segment_spec,
    workers_in,
)
from tests.rpc.worker_world import infer_request, routed, save_model, until

READY = inventory_pb2.SEGMENT_STATE_READY


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "tiny.onnx")


@asynccontextmanager
async def agent_process(settings: Deployment) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run an agent as a process; what it leaves is killed at the end."""
    folder = settings.nodes[NODE].state_dir
    path = folder / "cinquefoil.yaml"
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.gpuagent",
        NODE,
        env={**os.environ, "CINQUEFOIL_CONFIG": str(path)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.wait(), 20)


async def _kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def _start_two(planner: Planner) -> None:
    assert (await planner.create("3g.20gb", 0)).ok
    assert (await planner.create("3g.20gb", 4)).ok
    assert (await planner.start(segment_spec("s-0"))).ok
    assert (await planner.start(segment_spec("s-4", placement=placement("3g.20gb", 4)))).ok


async def test_traffic_goes_on_without_the_agent_and_its_successor_adopts_the_workers(
    tmp_path: Path, model: Path
) -> None:
    """SIGKILL under load: no request fails, no worker restarts, no energy and no batch is lost."""
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings) as first:
            await _start_two(planner)
            before = {s.spec.segment_id: s for s in planner.node.segments}
            pids = {process.pid for process in workers_in(tmp_path)}
            async with routed(before["s-0"].endpoints[0]) as router:
                statuses = [
                    (await router.ask(infer_request([[0, 0]]), number)).status
                    for number in range(20)
                ]
                await _kill(first)
                statuses += [
                    (await router.ask(infer_request([[0, 0]]), number)).status
                    for number in range(20, 40)
                ]
                async with agent_process(settings):
                    await planner.until(lambda: len(planner.first_requests) == 2)
                    report = planner.first_requests[1].node
                    statuses += [
                        (await router.ask(infer_request([[0, 0]]), number)).status
                        for number in range(40, 60)
                    ]

                    def all_counted() -> bool:
                        segments = planner.energy[GPU].segments if planner.energy else []
                        return sum(segment.requests for segment in segments) == 60

                    await planner.until(all_counted)
                    account = planner.energy[GPU]
                    assert {process.pid for process in workers_in(tmp_path)} == pids

    assert statuses == [""] * 60
    assert {s.spec.segment_id: s.endpoints for s in report.segments} == {
        name: segment.endpoints for name, segment in before.items()
    }
    assert [s.state for s in report.segments] == [READY, READY]
    parts_j = account.idle_j + account.unattributed_j + sum(s.active_j for s in account.segments)
    assert parts_j == pytest.approx(account.total_j)
    assert sum(s.batches for s in account.segments) == 60, "asked one by one"


async def test_a_worker_that_died_with_the_agent_is_started_again_on_its_endpoint(
    tmp_path: Path, model: Path
) -> None:
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings) as first:
            await _start_two(planner)
            before = {s.spec.segment_id: list(s.endpoints) for s in planner.node.segments}
            await _kill(first)
            victim = next(p for p in workers_in(tmp_path) if "s-4" in p.cmdline()[-1])
            victim.kill()
        async with agent_process(settings):
            await planner.until(lambda: len(planner.first_requests) == 2)
            await planner.until(lambda: [s.state for s in planner.node.segments] == [READY] * 2)
            after = {s.spec.segment_id: list(s.endpoints) for s in planner.node.segments}
            async with routed(after["s-4"][0]) as router:
                answer = await router.ask(infer_request([[0, 0]]))

    assert after == before
    assert answer.status == ""


async def test_a_worker_that_the_journal_does_not_know_is_ended(
    tmp_path: Path, model: Path
) -> None:
    """As when the agent died between stopping a segment and forgetting it, or the reverse."""
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings) as first:
            await _start_two(planner)
            await _kill(first)
            (tmp_path / NODE / "journal.json").write_text('{"version": 1, "segments": []}')
            assert len(workers_in(tmp_path)) == 2
        async with agent_process(settings):
            await planner.until(lambda: len(planner.first_requests) == 2)
            assert not planner.node.segments
            assert workers_in(tmp_path) == []
            assert (await planner.destroy("3g.20gb", 0)).ok


async def test_a_segment_whose_slice_is_gone_is_dropped(tmp_path: Path, model: Path) -> None:
    """As after a reboot, which no MIG slice survives."""
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings) as first:
            await _start_two(planner)
            await _kill(first)
            for process in workers_in(tmp_path):
                process.kill()
            for state in (tmp_path / NODE / "hardware").iterdir():
                state.unlink()
        async with agent_process(settings):
            await planner.until(lambda: len(planner.first_requests) == 2)
            assert planner.slices() == []
            assert not planner.node.segments


async def test_workers_without_an_agent_end_themselves_in_the_end(
    tmp_path: Path, model: Path
) -> None:
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}", orphan_timeout_s=2.0)
        async with agent_process(settings) as process:
            await _start_two(planner)
            assert len(workers_in(tmp_path)) == 2
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await until(lambda: not workers_in(tmp_path))

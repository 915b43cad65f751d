"""Changes over an agent's end: killed or stopped half way, and what outlives a restart."""

import asyncio
from pathlib import Path

import grpc
import pytest

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from tests.support.gpuagent.agent_process import agent_process, killed
from tests.support.gpuagent.agent_service import (
    GPU,
    NODE,
    WHOLE_GPU,
    agent,
    create,
    deployment,
    destroy,
    lock_clock,
    placement,
    planning,
    segment_spec,
    start,
    stop,
)
from tests.support.gpuagent.full_gpu import ON_4, READY, SMALL, fill, pids, ready
from tests.support.worker.worker_process import infer_request, routed, until


async def test_an_agent_killed_half_way_finds_the_node_as_it_was_before_the_change(
    tmp_path: Path, model: Path
) -> None:
    """SIGKILL while the new segment loads: its successor undoes all of the change."""
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings) as first:
            await planner.until(lambda: planner.node.name == NODE)
            await fill(planner)
            before = pids(tmp_path)
            half_way = asyncio.create_task(
                planner.change(
                    [lock_clock(990), stop("s-4")],
                    [destroy("3g.20gb", 4)],
                    [create("2g.10gb", 4)],
                    [start(SMALL)],
                )
            )
            await until(lambda: "s-small" in pids(tmp_path), 0.05)
            await killed(first)
            half_way.cancel()
            assert (tmp_path / NODE / "change.json").exists()
        async with agent_process(settings):
            await planner.until(lambda: len(planner.first_requests) == 2)
            report = planner.first_requests[1].node
            left = pids(tmp_path)
            async with routed(ready(planner)["s-4"][0]) as router:
                answer = await router.infer(infer_request([[0, 0]]))

    slices = [f"{s.placement.profile}@{s.placement.start}" for s in report.gpus[0].slices]
    assert slices == ["3g.20gb@0", "3g.20gb@4"]
    assert {s.spec.segment_id for s in report.segments if s.state == READY} == {"s-0", "s-4"}
    assert report.gpus[0].locked_clock_mhz == 0
    assert set(left) == {"s-0", "s-4"}
    assert left["s-0"] == before["s-0"]
    assert answer.status == ""
    assert not (tmp_path / NODE / "change.json").exists()


async def test_an_agent_that_is_stopped_half_way_leaves_the_slices_as_they_were(
    tmp_path: Path, model: Path
) -> None:
    """SIGTERM in mid-change: it ends soon, with no worker left, and nothing half-done."""
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        async with agent(settings) as running:
            await planner.until(lambda: planner.node.name == NODE)
            created = [create("3g.20gb", 0), create("3g.20gb", 4)]
            assert (await planner.change(created, [start(ON_4)])).ok
            half_way = asyncio.create_task(
                planner.change(
                    [stop("s-4")],
                    [destroy("3g.20gb", 4)],
                    [create("2g.10gb", 4)],
                    [start(SMALL)],
                )
            )
            await until(lambda: "s-small" in pids(tmp_path), 0.05)
            running.stop.set()
        half_way.cancel()
        assert pids(tmp_path) == {}
        async with agent(settings) as running:
            node = await running.node()

    slices = [f"{s.placement.profile}@{s.placement.start}" for s in node.gpus[0].slices]
    assert slices == ["3g.20gb@0", "3g.20gb@4"]


async def test_mig_mode_goes_off_and_stays_off_over_a_restart(tmp_path: Path, model: Path) -> None:
    """A GPU that an operator wants whole is whole for the agent's successor too."""
    whole = segment_spec("s-whole", placement=placement("whole", 0))
    request = pb.ReconfigureRequest(
        gpus=[pb.DesiredGpu(gpu_uuid=GPU, mig_enabled=False, segments=[whole])], allow_gap=True
    )
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        async with agent(settings) as running:
            await planner.until(lambda: planner.node.name == NODE)
            assert (await planner.change([create("3g.20gb", 4)], [start(ON_4)])).ok
            await running.stub.Reconfigure(request)
            await planner.until(lambda: planner.slices() == ["whole@0"])
            assert set(pids(tmp_path)) == {"s-whole"}
        async with agent(settings) as running:
            gpus = (await running.node()).gpus
            assert [gpu.mig_enabled for gpu in gpus] == [False, False]
            back = pb.DesiredGpu(gpu_uuid=GPU, mig_enabled=True)
            await running.stub.Reconfigure(pb.ReconfigureRequest(gpus=[back]))
            assert [gpu.mig_enabled for gpu in (await running.node()).gpus] == [True, False]
            never = pb.DesiredGpu(gpu_uuid=WHOLE_GPU, mig_enabled=True)
            with pytest.raises(grpc.aio.AioRpcError, match="Not Supported"):
                await running.stub.Reconfigure(pb.ReconfigureRequest(gpus=[never]))

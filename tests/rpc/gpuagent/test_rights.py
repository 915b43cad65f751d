"""Permissions of an agent on its node, and its reports of GPUs that are gone."""

from pathlib import Path

import grpc
import pytest

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from cinquefoil.gpuagent.v1 import inventory_pb2
from services.gpuagent.devices.fake_nvml.library import FakeNvml
from services.kit.config import Node
from tests.support.gpuagent.agent_service import (
    GPU,
    NODE,
    WHOLE_GPU,
    Agent,
    Planner,
    agent,
    deployment,
    planning,
    segment_spec,
    workers_in,
)


def _outsider(folder: Path) -> FakeNvml:
    """The hardware of the running agent, for a test that pulls its plugs."""
    return FakeNvml(NODE, ["a100-40gb", "t4"], state_dir=folder / NODE / "hardware")


def _uuids(node: inventory_pb2.Node) -> list[str]:
    return [gpu.uuid for gpu in node.gpus]


# ---- rights ------------------------------------------------------------------------------------


async def test_a_read_only_agent_reports_and_refuses_every_step(
    tmp_path: Path, model: Path
) -> None:
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}", control=False)
        async with agent(settings) as running:
            await planner.until(lambda: len(planner.node.gpus) == 2 and len(planner.energy) == 2)
            results = [
                await planner.create("3g.20gb", 0),
                await planner.destroy("3g.20gb", 0),
                await planner.lock_clock(990),
                await planner.start(segment_spec()),
                await planner.stop("s-1"),
            ]
            energy = await running.energy()
            reported = await running.node()

    assert [result.status for result in results] == ["PERMISSION_DENIED"] * len(results)
    assert all("nodes.node-a.control" in result.message for result in results)
    assert set(energy) == {GPU, WHOLE_GPU}
    assert not any(gpu.mig_enabled or gpu.clock_lockable for gpu in reported.gpus)
    assert not reported.segments


async def test_an_agent_that_only_reads_reports_the_way_and_does_not_take_it(
    tmp_path: Path, model: Path
) -> None:
    settings = deployment(tmp_path, model, "127.0.0.1:1", control=False)
    desired = pb.DesiredGpu(gpu_uuid=WHOLE_GPU, clock_mhz=990)
    async with agent(settings) as running:
        answer = await running.stub.Reconfigure(pb.ReconfigureRequest(gpus=[desired], dry_run=True))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.stub.Reconfigure(pb.ReconfigureRequest(gpus=[desired]))

    ((action,),) = (group.actions for group in answer.change.groups)
    assert action.WhichOneof("action") == "lock_clock"
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert "control" in (refused.value.details() or "")


@pytest.mark.parametrize(
    ("simulated", "control", "controlled"),
    [
        (("t4",), None, True),
        (("t4",), False, False),
        (None, None, False),
        (None, True, True),
    ],
)
def test_real_gpus_are_changed_only_where_the_deployment_says_so(
    simulated: tuple[str, ...] | None, control: bool | None, controlled: bool
) -> None:
    assert Node(zone="Z", simulated=simulated, control=control).controlled == controlled


# ---- lost GPUs ---------------------------------------------------------------------------------


async def test_a_lost_gpu_is_reported_gone_with_its_segments_and_comes_back_after_a_reset(
    node: tuple[Planner, Agent], tmp_path: Path
) -> None:
    planner, running = node
    assert (await planner.create("3g.20gb", 0)).ok
    assert (await planner.start(segment_spec())).ok
    assert (await planner.lock_clock(990)).ok
    outsider = _outsider(tmp_path)

    outsider.lose(GPU)
    await planner.until(lambda: _uuids(planner.node) == [WHOLE_GPU] and not planner.node.segments)
    assert workers_in(tmp_path) == []
    assert _uuids(await running.node()) == [WHOLE_GPU]
    refused = await planner.create("3g.20gb", 4)
    assert not refused.ok
    assert (await planner.start(_on_the_other())).ok, "the other GPU serves on"

    outsider.reset(GPU)
    await planner.until(lambda: _uuids(planner.node) == [GPU, WHOLE_GPU])
    (gpu, _) = (await running.node()).gpus
    assert not gpu.slices
    assert (gpu.mig_enabled, gpu.locked_clock_mhz, gpu.clock_mhz) == (True, 990, 990)
    assert (await planner.create("3g.20gb", 0)).ok
    assert (await planner.start(segment_spec("s-2"))).ok


def _on_the_other() -> inventory_pb2.SegmentSpec:
    whole = inventory_pb2.Placement(profile="whole", start=0)
    return segment_spec("other", gpu_uuid=WHOLE_GPU, placement=whole)

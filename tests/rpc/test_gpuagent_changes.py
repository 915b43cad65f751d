"""Changes as one step: all or nothing, over a crash too, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from cinquefoil.gpuagent.v1 import inventory_pb2
from tests.rpc.agent_world import (
    GPU,
    NODE,
    WHOLE_GPU,
    Agent,
    Planner,
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
    workers_in,
)
from tests.rpc.test_gpuagent_crash import agent_process
from tests.rpc.worker_world import infer_request, routed, save_model, until

READY = inventory_pb2.SEGMENT_STATE_READY
ON_0 = segment_spec("s-0")
ON_4 = segment_spec("s-4", placement=placement("3g.20gb", 4))
SMALL = segment_spec("s-small", placement=placement("2g.10gb", 4))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.fixture
async def node(tmp_path: Path, model: Path) -> AsyncIterator[tuple[Planner, Agent]]:
    """An agent with two segments on a full GPU."""
    async with (
        planning() as (planner, port),
        agent(deployment(tmp_path, model, f"127.0.0.1:{port}")) as running,
    ):
        await planner.until(lambda: planner.node.name == NODE)
        await _fill(planner)
        yield planner, running


async def _fill(planner: Planner) -> None:
    result = await planner.change(
        [create("3g.20gb", 0), create("3g.20gb", 4)], [start(ON_0), start(ON_4)]
    )
    assert result.ok, result.message


def _pids(folder: Path) -> dict[str, int]:
    """Return the worker's process by segment."""
    return {Path(p.info["cmdline"][-1]).name.split(".")[0]: p.pid for p in workers_in(folder)}


def _ready(planner: Planner) -> dict[str, list[str]]:
    """Return the endpoints of the segments that are ready."""
    return {s.spec.segment_id: list(s.endpoints) for s in planner.node.segments if s.state == READY}


async def test_one_slice_of_a_full_gpu_changes_while_its_neighbour_serves(
    node: tuple[Planner, Agent], tmp_path: Path
) -> None:
    planner, _ = node
    before, uuid = _pids(tmp_path), planner.node.gpus[0].slices[0].uuid
    statuses: list[str] = []

    async def ask(serving: asyncio.Event) -> None:
        async with routed(_ready(planner)["s-0"][0]) as router:
            while not serving.is_set():
                result = await router.ask(infer_request([[0, 0]]), len(statuses))
                statuses.append(result.status)

    done = asyncio.Event()
    asking = asyncio.create_task(ask(done))
    result = await planner.change(
        [stop("s-4")], [destroy("3g.20gb", 4)], [create("2g.10gb", 4)], [start(SMALL)]
    )
    done.set()
    await asking

    assert result.ok, result.message
    assert planner.slices() == ["3g.20gb@0", "2g.10gb@4"]
    assert planner.node.gpus[0].slices[0].uuid == uuid
    assert set(_ready(planner)) == {"s-0", "s-small"}
    assert _pids(tmp_path)["s-0"] == before["s-0"]
    assert len(statuses) > 10
    assert set(statuses) == {""}


async def test_a_change_that_fails_says_what_failed_and_leaves_the_node_as_it_was(
    node: tuple[Planner, Agent], tmp_path: Path
) -> None:
    """What was stopped runs again, what was destroyed is back, the clock is as it was."""
    planner, _ = node
    before = _pids(tmp_path)

    result = await planner.change(
        [lock_clock(990), stop("s-4")],
        [destroy("3g.20gb", 4)],
        [create("2g.10gb", 4)],
        [start(SMALL)],
        [create("1g.5gb", 5)],
    )

    assert (result.ok, result.status) == (False, "FAILED_PRECONDITION")
    assert "cannot create 1g.5gb@5" in result.message
    assert "all was undone" in result.message
    assert list(result.not_restored) == []
    assert planner.slices() == ["3g.20gb@0", "3g.20gb@4"]
    assert set(_ready(planner)) == {"s-0", "s-4"}
    assert planner.node.gpus[0].locked_clock_mhz == 0
    after = _pids(tmp_path)
    assert set(after) == {"s-0", "s-4"}
    assert after["s-0"] == before["s-0"]


async def test_a_change_that_cannot_be_touches_nothing(
    node: tuple[Planner, Agent], tmp_path: Path
) -> None:
    """What is wrong with any of its actions is found before the first."""
    planner, _ = node
    before = _pids(tmp_path)

    refusals = [
        await planner.change([stop("s-4")], [destroy("3g.20gb", 4)], [create("3g.20gb", 4)]),
        await planner.change([stop("s-4")], [create("1g.5gb", 0, gpu="GPU-none")]),
        await planner.change([stop("s-4")], [start(segment_spec("s-5", variant="w"))]),
    ]

    assert [result.status for result in refusals] == ["INVALID_ARGUMENT", "NOT_FOUND", "NOT_FOUND"]
    assert "slice 3g.20gb@4" in refusals[0].message
    assert _pids(tmp_path) == before


async def test_an_agent_killed_half_way_finds_the_node_as_it_was_before_the_change(
    tmp_path: Path, model: Path
) -> None:
    """SIGKILL while the new segment loads: its successor undoes all of the change."""
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings) as first:
            await planner.until(lambda: planner.node.name == NODE)
            await _fill(planner)
            before = _pids(tmp_path)
            half_way = asyncio.create_task(
                planner.change(
                    [lock_clock(990), stop("s-4")],
                    [destroy("3g.20gb", 4)],
                    [create("2g.10gb", 4)],
                    [start(SMALL)],
                )
            )
            await until(lambda: "s-small" in _pids(tmp_path))
            first.kill()
            await first.wait()
            half_way.cancel()
            assert (tmp_path / NODE / "change.json").exists()
        async with agent_process(settings):
            await planner.until(lambda: len(planner.first_requests) == 2)
            report = planner.first_requests[1].node
            pids = _pids(tmp_path)
            async with routed(_ready(planner)["s-4"][0]) as router:
                answer = await router.ask(infer_request([[0, 0]]))

    slices = [f"{s.placement.profile}@{s.placement.start}" for s in report.gpus[0].slices]
    assert slices == ["3g.20gb@0", "3g.20gb@4"]
    assert {s.spec.segment_id for s in report.segments if s.state == READY} == {"s-0", "s-4"}
    assert report.gpus[0].locked_clock_mhz == 0
    assert set(pids) == {"s-0", "s-4"}
    assert pids["s-0"] == before["s-0"]
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
            await _fill(planner)
            half_way = asyncio.create_task(
                planner.change(
                    [stop("s-4")],
                    [destroy("3g.20gb", 4)],
                    [create("2g.10gb", 4)],
                    [start(SMALL)],
                )
            )
            await until(lambda: "s-small" in _pids(tmp_path))
            running.stop.set()
        half_way.cancel()
        assert _pids(tmp_path) == {}
        async with agent(settings) as running:
            node = await running.node()

    slices = [f"{s.placement.profile}@{s.placement.start}" for s in node.gpus[0].slices]
    assert slices == ["3g.20gb@0", "3g.20gb@4"]


async def test_who_calls_and_goes_away_takes_the_change_back(
    node: tuple[Planner, Agent], tmp_path: Path
) -> None:
    _, running = node
    request = pb.ReconfigureRequest(gpus=[_desired(ON_0, SMALL)], allow_gap=True)
    call = running.stub.Reconfigure(request)
    await until(lambda: "s-small" in _pids(tmp_path))
    call.cancel()

    again = await running.stub.Reconfigure(
        pb.ReconfigureRequest(gpus=[_desired(ON_0, ON_4)], allow_gap=True)
    )
    after = await running.node()

    assert {s.spec.segment_id for s in after.segments if s.state == READY} == {"s-0", "s-4"}
    assert set(_pids(tmp_path)) == {"s-0", "s-4"}
    assert again.elapsed_s >= 0


# ---- desired state -----------------------------------------------------------------------------


def _desired(*segments: inventory_pb2.SegmentSpec, clock_mhz: int | None = None) -> pb.DesiredGpu:
    gpu = pb.DesiredGpu(
        gpu_uuid=GPU, slices=[segment.placement for segment in segments], segments=segments
    )
    if clock_mhz is not None:
        gpu.clock_mhz = clock_mhz
    return gpu


def _kinds(response: pb.ReconfigureResponse) -> list[list[str | None]]:
    return [[a.WhichOneof("action") for a in group.actions] for group in response.change.groups]


async def test_the_way_to_a_desired_state_is_told_then_taken_then_empty(
    node: tuple[Planner, Agent], tmp_path: Path
) -> None:
    planner, running = node
    before = _pids(tmp_path)
    request = pb.ReconfigureRequest(gpus=[_desired(ON_0, SMALL, clock_mhz=990)], allow_gap=True)
    dry = pb.ReconfigureRequest(gpus=request.gpus, dry_run=True)

    told = await running.stub.Reconfigure(dry)
    assert _pids(tmp_path) == before
    taken = await running.stub.Reconfigure(request)
    after = _pids(tmp_path)
    again = await running.stub.Reconfigure(request)

    assert _kinds(told) == [
        ["stop_segment"],
        ["destroy_slice"],
        ["create_slice"],
        ["start_segment"],
        ["lock_clock"],
    ]
    assert taken.change == told.change
    assert list(taken.gaps) == ["m"]
    assert taken.elapsed_s > 0
    assert set(after) == {"s-0", "s-small"}
    assert after["s-0"] == before["s-0"]
    assert _kinds(again) == []
    assert _pids(tmp_path) == after
    await planner.until(lambda: planner.node.gpus[0].locked_clock_mhz == 990)


async def test_a_gap_in_capacity_needs_a_word(node: tuple[Planner, Agent], tmp_path: Path) -> None:
    _, running = node
    before = _pids(tmp_path)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await running.stub.Reconfigure(pb.ReconfigureRequest(gpus=[_desired(ON_0, SMALL)]))

    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "allow_gap" in (refused.value.details() or "")
    assert _pids(tmp_path) == before


async def test_an_agent_that_only_reads_tells_the_way_and_does_not_take_it(
    tmp_path: Path, model: Path
) -> None:
    settings = deployment(tmp_path, model, "127.0.0.1:1", control=False)
    desired = pb.DesiredGpu(gpu_uuid=WHOLE_GPU, clock_mhz=990)
    async with agent(settings) as running:
        told = await running.stub.Reconfigure(pb.ReconfigureRequest(gpus=[desired], dry_run=True))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.stub.Reconfigure(pb.ReconfigureRequest(gpus=[desired]))

    assert _kinds(told) == [["lock_clock"]]
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert "control" in (refused.value.details() or "")


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
            assert set(_pids(tmp_path)) == {"s-whole"}
        async with agent(settings) as running:
            gpus = (await running.node()).gpus
            assert [gpu.mig_enabled for gpu in gpus] == [False, False]
            back = pb.DesiredGpu(gpu_uuid=GPU, mig_enabled=True)
            await running.stub.Reconfigure(pb.ReconfigureRequest(gpus=[back]))
            assert [gpu.mig_enabled for gpu in (await running.node()).gpus] == [True, False]
            never = pb.DesiredGpu(gpu_uuid=WHOLE_GPU, mig_enabled=True)
            with pytest.raises(grpc.aio.AioRpcError, match="Not Supported"):
                await running.stub.Reconfigure(pb.ReconfigureRequest(gpus=[never]))

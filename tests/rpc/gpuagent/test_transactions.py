"""Changes as one step: all or nothing, over a crash too, unnoticed by others."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from cinquefoil.gpuagent.v1 import inventory_pb2
from tests.support.gpuagent.agent_service import (
    GPU,
    NODE,
    Agent,
    Planner,
    agent,
    create,
    deployment,
    destroy,
    lock_clock,
    planning,
    segment_spec,
    start,
    stop,
)
from tests.support.gpuagent.full_gpu import ON_0, ON_4, READY, SMALL, fill, pids, ready
from tests.support.worker.worker_process import infer_request, routed, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the agent that tests share has its files."""
    return tmp_path_factory.mktemp("node")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(folder: Path, model: Path) -> AsyncIterator[tuple[Planner, Agent]]:
    """An agent with two segments on a full GPU."""
    async with (
        planning() as (planner, port),
        agent(deployment(folder, model, f"127.0.0.1:{port}")) as running,
    ):
        await planner.until(lambda: planner.node.name == NODE)
        await fill(planner)
        yield planner, running


@pytest_asyncio.fixture(loop_scope="module")
async def node(shared: tuple[Planner, Agent]) -> tuple[Planner, Agent]:
    """The shared agent, with what an earlier test has changed as it was."""
    planner, running = shared
    full = pb.ReconfigureRequest(gpus=[_desired(ON_0, ON_4, clock_mhz=0)], allow_gap=True)
    await running.stub.Reconfigure(full)
    await planner.until(
        lambda: set(ready(planner)) == {"s-0", "s-4"} and not planner.node.gpus[0].locked_clock_mhz
    )
    return planner, running


async def test_one_slice_of_a_full_gpu_changes_while_its_neighbour_serves(
    node: tuple[Planner, Agent], folder: Path
) -> None:
    planner, _ = node
    before, uuid = pids(folder), planner.node.gpus[0].slices[0].uuid
    statuses: list[str] = []

    async def send_requests(serving: asyncio.Event) -> None:
        async with routed(ready(planner)["s-0"][0]) as router:
            while not serving.is_set():
                result = await router.infer(infer_request([[0, 0]]), len(statuses))
                statuses.append(result.status)

    done = asyncio.Event()
    sending = asyncio.create_task(send_requests(done))
    result = await planner.change(
        [stop("s-4")], [destroy("3g.20gb", 4)], [create("2g.10gb", 4)], [start(SMALL)]
    )
    done.set()
    await sending

    assert result.ok, result.message
    assert planner.slices() == ["3g.20gb@0", "2g.10gb@4"]
    assert planner.node.gpus[0].slices[0].uuid == uuid
    assert set(ready(planner)) == {"s-0", "s-small"}
    assert pids(folder)["s-0"] == before["s-0"]
    assert len(statuses) > 10
    assert set(statuses) == {""}


async def test_a_change_that_fails_says_what_failed_and_leaves_the_node_as_it_was(
    node: tuple[Planner, Agent], folder: Path
) -> None:
    """Stopped segments run again, destroyed slices are back, the clock is as it was."""
    planner, _ = node
    before = pids(folder)

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
    assert set(ready(planner)) == {"s-0", "s-4"}
    assert planner.node.gpus[0].locked_clock_mhz == 0
    after = pids(folder)
    assert set(after) == {"s-0", "s-4"}
    assert after["s-0"] == before["s-0"]


async def test_a_change_that_cannot_be_touches_nothing(
    node: tuple[Planner, Agent], folder: Path
) -> None:
    """A fault in any of its actions is found before the first."""
    planner, _ = node
    before = pids(folder)

    refusals = [
        await planner.change([stop("s-4")], [destroy("3g.20gb", 4)], [create("3g.20gb", 4)]),
        await planner.change([stop("s-4")], [create("1g.5gb", 0, gpu="GPU-none")]),
        await planner.change([stop("s-4")], [start(segment_spec("s-5", variant="w"))]),
    ]

    assert [result.status for result in refusals] == ["INVALID_ARGUMENT", "NOT_FOUND", "NOT_FOUND"]
    assert "slice 3g.20gb@4" in refusals[0].message
    assert pids(folder) == before


async def test_who_calls_and_goes_away_takes_the_change_back(
    node: tuple[Planner, Agent], folder: Path
) -> None:
    _, running = node
    request = pb.ReconfigureRequest(gpus=[_desired(ON_0, SMALL)], allow_gap=True)
    call = running.stub.Reconfigure(request)
    await until(lambda: "s-small" in pids(folder), 0.05)
    call.cancel()

    again = await running.stub.Reconfigure(
        pb.ReconfigureRequest(gpus=[_desired(ON_0, ON_4)], allow_gap=True)
    )
    after = await running.node()

    assert {s.spec.segment_id for s in after.segments if s.state == READY} == {"s-0", "s-4"}
    assert set(pids(folder)) == {"s-0", "s-4"}
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


async def test_the_way_to_a_desired_state_is_reported_then_taken_then_empty(
    node: tuple[Planner, Agent], folder: Path
) -> None:
    planner, running = node
    before = pids(folder)
    request = pb.ReconfigureRequest(gpus=[_desired(ON_0, SMALL, clock_mhz=990)], allow_gap=True)
    dry = pb.ReconfigureRequest(gpus=request.gpus, dry_run=True)

    planned = await running.stub.Reconfigure(dry)
    assert pids(folder) == before
    taken = await running.stub.Reconfigure(request)
    after = pids(folder)
    again = await running.stub.Reconfigure(request)

    assert _kinds(planned) == [
        ["stop_segment"],
        ["destroy_slice"],
        ["create_slice"],
        ["start_segment"],
        ["lock_clock"],
    ]
    assert taken.change == planned.change
    assert list(taken.gaps) == ["m"]
    assert taken.elapsed_s > 0
    assert set(after) == {"s-0", "s-small"}
    assert after["s-0"] == before["s-0"]
    assert _kinds(again) == []
    assert pids(folder) == after
    await planner.until(lambda: planner.node.gpus[0].locked_clock_mhz == 990)


async def test_a_clock_that_the_gpu_does_not_have_is_refused_before_anything_is_done(
    node: tuple[Planner, Agent], folder: Path
) -> None:
    """By a dry run, too."""
    _, running = node
    before = pids(folder)

    for dry_run in (True, False):
        gpus = [_desired(ON_0, SMALL, clock_mhz=7)]
        request = pb.ReconfigureRequest(gpus=gpus, allow_gap=True, dry_run=dry_run)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.stub.Reconfigure(request)

        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "clock_mhz must be 210..1410, got 7" in (refused.value.details() or "")
    assert pids(folder) == before


async def test_a_gap_in_capacity_needs_a_word(node: tuple[Planner, Agent], folder: Path) -> None:
    _, running = node
    before = pids(folder)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await running.stub.Reconfigure(pb.ReconfigureRequest(gpus=[_desired(ON_0, SMALL)]))

    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "allow_gap" in (refused.value.details() or "")
    assert pids(folder) == before

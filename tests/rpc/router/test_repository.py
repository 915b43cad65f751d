"""The router's models and settings as clients see them, and the changes that it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc
import pytest

from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.router.frontend import repository
from tests.support.router.router_service import World, infer_request, routed, running
from tests.support.waiting import until

if TYPE_CHECKING:
    from inference.grpc_service_pb2_grpc import GRPCInferenceServiceAsyncStub

    Router = GRPCInferenceServiceAsyncStub


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running() as made:
        yield made


def client(world: World) -> Router:
    return GRPCInferenceServiceStub(world.channel)


async def index(world: World, *, ready: bool = False) -> list[tuple[str, str, str]]:
    answer = await client(world).RepositoryIndex(pb.RepositoryIndexRequest(ready=ready))
    return [(model.name, model.state, model.reason) for model in answer.models]


async def test_the_index_says_why_a_model_takes_no_requests(world: World) -> None:
    """From before the first table to a worker that drains; `ready` leaves such models out."""
    worker = await world.worker("a")
    before = await index(world)
    await world.route()
    without = await index(world)
    gone = routed(worker)
    gone.endpoint = "127.0.0.1:1"
    await world.planner.route(gone)
    await world.acknowledged()
    unreachable = await index(world)
    await world.route(worker)
    ready = await index(world, ready=True)
    worker.drain()

    async def drained() -> bool:
        return await index(world) == [("digits", "UNAVAILABLE", "its instances drain")]

    await until(drained)
    assert before == [("digits", "UNAVAILABLE", "no routing table has come from the planner yet")]
    assert without == [("digits", "UNAVAILABLE", "the plan gives it no instance")]
    assert unreachable == [("digits", "UNAVAILABLE", "none of its 1 instances can be reached")]
    assert ready == [("digits", "READY", "")]
    assert await index(world, ready=True) == []


async def test_a_model_without_a_worker_has_no_metadata_yet(world: World) -> None:
    await world.route()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client(world).ModelMetadata(pb.ModelMetadataRequest(name="digits"))

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "no instance of model 'digits' has reported its tensors yet" in str(
        caught.value.details()
    )


async def test_a_named_repository_is_refused(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client(world).RepositoryIndex(pb.RepositoryIndexRequest(repository_name="other"))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the deployment file is the only one" in str(caught.value.details())


async def test_statistics_split_a_requests_time_into_queue_and_compute(world: World) -> None:
    """The scripted worker says 1 ms of queue and 4 ms of compute for each request."""
    await world.route(await world.worker("a"))
    for _ in range(5):
        await client(world).ModelInfer(infer_request())

    answer = await client(world).ModelStatistics(pb.ModelStatisticsRequest(name="digits"))

    (model,) = answer.model_stats
    found = model.inference_stats
    assert (found.success.count, found.queue.count, found.compute_infer.count) == (5, 5, 5)
    assert found.compute_infer.ns == pytest.approx(5 * 4e6)
    assert found.queue.ns >= 5 * 1e6
    assert found.success.ns > 0
    (batch,) = model.batch_stats
    assert (batch.batch_size, batch.compute_infer.count) == (1, 5)


async def test_no_region_of_shared_memory_exists(world: World) -> None:
    stub = client(world)

    assert not (await stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest())).regions
    assert not (await stub.CudaSharedMemoryStatus(pb.CudaSharedMemoryStatusRequest())).regions
    await stub.SystemSharedMemoryUnregister(pb.SystemSharedMemoryUnregisterRequest(name="r"))
    await stub.CudaSharedMemoryUnregister(pb.CudaSharedMemoryUnregisterRequest())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest(name="r"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(("recording", "level"), [(False, "OFF"), (True, "TIMESTAMPS")])
def test_the_trace_level_says_whether_spans_are_recorded(recording: bool, level: str) -> None:
    assert repository.trace_settings(recording=recording).settings["trace_level"].value == [level]


@pytest.mark.parametrize(
    ("level", "info", "warnings", "verbose"),
    [("debug", True, True, 1), ("info", True, True, 0), ("warning", False, True, 0),
     ("error", False, False, 0)],
)  # fmt: skip
def test_the_log_level_has_tritons_names(
    level: str, info: bool, warnings: bool, verbose: int
) -> None:
    found = repository.log_settings(level).settings

    assert (found["log_info"].bool_param, found["log_warnings"].bool_param) == (info, warnings)
    assert found["log_errors"].bool_param
    assert found["log_verbose_level"].uint32_param == verbose

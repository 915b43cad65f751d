"""A worker's stream: what shares a frame, bodies untouched, and credits that change."""

import asyncio

import pytest

from cinquefoil.gpuagent.v1 import worker_pb2
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.support.router.router_service import (
    Answer,
    ScriptedWorker,
    World,
    infer_request,
    running,
)
from tests.support.waiting import until


def hold(_: worker_pb2.Work) -> None:
    """Answer nothing yet."""


async def infer(world: World, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    response: pb.ModelInferResponse = await GRPCInferenceServiceStub(world.channel).ModelInfer(
        request
    )
    return response


async def busy(world: World, answer: Answer, credits_: int) -> ScriptedWorker:
    worker = await world.worker("one", answer, credits_=credits_)
    await world.route(worker)
    return worker


async def test_requests_that_come_together_share_frames_and_keep_their_order() -> None:
    async with running(max_queue=100) as world, asyncio.TaskGroup() as callers:
        worker = await busy(world, hold, 64)
        names = [f"{n:02}" for n in range(64)]
        sent = [callers.create_task(infer(world, infer_request(name=name))) for name in names]
        await until(lambda: len(worker.held) == 64)

        assert max(worker.frames) > 1
        assert len(worker.frames) < 64
        ids = [work.id for work in worker.works]
        assert ids == sorted(ids)

        worker.finish()
        assert [(await task).id for task in sent] == names


@pytest.mark.parametrize("size", [1, 200_000, 1_000_000])
async def test_a_body_arrives_as_it_was_sent(size: int) -> None:
    """Small, larger than a frame, and larger than HTTP/2's windows."""
    async with running() as world:
        worker = await busy(world, hold, 1)
        request = infer_request(1, 2, 3, 4)
        request.parameters["padding"].string_param = "x" * size
        body = request.SerializeToString()
        sent = asyncio.create_task(infer(world, request))
        await until(lambda: len(worker.held) == 1)

        assert worker.held[0].request == body
        worker.finish()
        await sent


async def test_a_worker_that_grants_more_gets_more_and_one_that_grants_less_gets_less() -> None:
    async with running(max_queue=100) as world, asyncio.TaskGroup() as callers:
        worker = await busy(world, hold, 1)
        sent = [callers.create_task(infer(world, infer_request(name=str(n)))) for n in range(6)]
        await until(lambda: len(worker.held) == 1)

        worker.grant(3)
        await until(lambda: len(worker.held) == 3)

        worker.grant(1)
        worker.finish()
        await until(lambda: len(worker.held) == 1)
        assert len(worker.works) == 4, "one credit, however many came free"

        worker.grant(6)
        await until(lambda: len(worker.held) == 3)
        worker.finish()
        assert [(await task).id for task in sent] == [str(n) for n in range(6)]

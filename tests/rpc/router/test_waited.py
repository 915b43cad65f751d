"""Deadlines of requests, and the time they took before their worker saw them."""

import asyncio
import time

import grpc
import pytest

from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.support.router.router_service import infer_request, running
from tests.support.waiting import until


async def test_a_worker_receives_how_long_a_request_waited_before_it() -> None:
    """A worker must not call a request early that spent its objective in the router's queue."""
    async with running() as world:
        worker = await world.worker("a")
        infer = GRPCInferenceServiceStub(world.channel).ModelInfer
        began_s = time.monotonic()
        first_call = infer(infer_request(1, 2, 3, 4))
        await asyncio.sleep(0.2)
        await world.route(worker)
        await first_call
        took_s = time.monotonic() - began_s
        await infer(infer_request(1, 2, 3, 4))

    first, second = (work.waited_s for work in worker.works)
    assert 0.1 < first <= took_s
    assert 0 < second < first


async def test_a_request_without_a_deadline_has_its_models_own() -> None:
    """The worker gets the deadline: it begins no request that no caller waits for."""
    async with running(default_deadline_s=0.1) as world:
        worker = await world.worker("a", lambda _: None)
        await world.route(worker)
        infer = GRPCInferenceServiceStub(world.channel).ModelInfer
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(infer_request(1, 2, 3, 4), timeout=None)
        await until(lambda: bool(worker.cancelled))

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0 < worker.works[0].remaining_s <= 0.1

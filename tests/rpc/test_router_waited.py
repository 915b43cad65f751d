"""A worker is told how long a request waited in the router."""

from __future__ import annotations

import asyncio
import time

from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.rpc.router_world import infer_request, running


async def test_a_worker_is_told_how_long_a_request_waited_before_it() -> None:
    """Or it would call a request early that spent its objective in the router's queue."""
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

"""Peers that vanish without a word are noticed, on both ends, in bounded time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from benchmarks._link import linked
from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1 import carbon_pb2_grpc
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.rpc import Limits, dial, serving
from tests.support.router.router_service import infer_request, running
from tests.support.waiting import until


class Silent(carbon_pb2_grpc.CarbonServiceServicer):
    """Says one word and nothing more. Attributes: open (streams)."""

    def __init__(self) -> None:
        self.open = 0
        self.left = asyncio.Event()

    async def Watch(
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.WatchResponse]:
        self.open += 1
        try:
            yield pb.WatchResponse(snapshot=True)
            await asyncio.Event().wait()
        finally:
            self.open -= 1
            self.left.set()


async def test_a_silent_stream_ends_on_both_ends_of_a_dead_link_and_lives_on_a_good_one() -> None:
    silent = Silent()  # type: ignore[abstract]  # one method is called
    async with (
        serving(
            "127.0.0.1:0",
            lambda server: carbon_pb2_grpc.add_CarbonServiceServicer_to_server(silent, server),
            (),
            grace_s=0,
            limits=Limits(dead_after_s=2.0),
        ) as server,
        linked(f"127.0.0.1:{server.port}") as dying,
        linked(f"127.0.0.1:{server.port}") as living,
        dial(dying.address, dead_after_s=2.0) as one,
        dial(living.address, dead_after_s=2.0) as other,
    ):
        lost = carbon_pb2_grpc.CarbonServiceStub(one).Watch(pb.WatchRequest())
        kept = carbon_pb2_grpc.CarbonServiceStub(other).Watch(pb.WatchRequest())
        await lost.read()
        await kept.read()
        dying.freeze()
        async with asyncio.timeout(15):  # by grpc's own defaults: never
            with pytest.raises(grpc.aio.AioRpcError) as noticed:
                await lost.read()
            await silent.left.wait()
        assert silent.open == 1
        assert not kept.done()
        kept.cancel()

    assert noticed.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_request_in_a_worker_that_vanished_is_answered_by_another() -> None:
    async with running(worker_dead_after_s=2.0) as world:
        vanishing = await world.worker("a", lambda _: None)
        async with linked(vanishing.endpoint) as link:
            vanishing.endpoint = link.address
            other = await world.worker("b")
            await world.route(vanishing, other, shares=(1.0, 0.0))
            call = GRPCInferenceServiceStub(world.channel).ModelInfer(infer_request(), timeout=20)
            await until(lambda: len(vanishing.held) == 1)
            link.freeze()
            answer = await call

    assert answer.parameters["model_variant"].string_param == other.variant

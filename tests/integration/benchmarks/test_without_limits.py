"""The live comparison's predictor does not learn where answers will be cut."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from benchmarks.generative.without_limits import relay
from cinquefoil.predictor.v1 import predictor_pb2 as pb
from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceStub
from services.kit.net import free_port
from tests.support.predictor.predictor_service import CAKE, MODEL, deployed, predictor

if TYPE_CHECKING:
    from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceAsyncStub
    from tests.conftest import Deploy


async def test_through_the_relay_limits_change_neither_predictions_nor_lengths(
    deployment: Deploy, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    cut = pb.Observation(model=MODEL, prompt=CAKE, output_tokens=321, truncated=True)
    async with (
        predictor(deployed(deployment, tmp_path)) as real,
        relay(address, real),
        grpc.aio.insecure_channel(address) as channel,
    ):
        relayed: PredictorServiceAsyncStub = PredictorServiceStub(channel)
        await relayed.Observe(pb.ObserveRequest(observations=[cut]))

        assert await expected_tokens(relayed) == 321
        assert await expected_tokens(real) <= 5


async def expected_tokens(stub: PredictorServiceAsyncStub) -> float:
    async def requests() -> AsyncIterator[pb.PredictRequest]:
        yield pb.PredictRequest(model=MODEL, prompt=CAKE, max_tokens=5)

    (answer,) = [each async for each in stub.Predict(requests())]
    return answer.expected_tokens

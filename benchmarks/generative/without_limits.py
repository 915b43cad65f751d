"""A relay in front of a predictor, through which it does not learn where answers will be cut.

The live benchmark ends answers where the real ones ended, by `max_tokens`. A predictor that knew it
would know every length.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc

from cinquefoil.predictor.v1 import predictor_pb2 as pb

if TYPE_CHECKING:
    from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceAsyncStub

    Context = grpc.aio.ServicerContext[Any, Any]

_SERVICE = "cinquefoil.predictor.v1.PredictorService"


@asynccontextmanager
async def relay(address: str, predictor: PredictorServiceAsyncStub) -> AsyncIterator[None]:
    """Relay what a router sends while the block runs: `max_tokens` is left out, no answer is cut.

    Args:
        address: Address at which the router looks for its predictor, host:port.
        predictor: The real one.
    """

    async def predict(
        requests: AsyncIterator[pb.PredictRequest], _: Context
    ) -> AsyncIterator[pb.PredictResponse]:
        async def without_limits() -> AsyncIterator[pb.PredictRequest]:
            async for request in requests:
                request.max_tokens = 0
                yield request

        async for response in predictor.Predict(without_limits()):
            yield response

    async def observe(request: pb.ObserveRequest, _: Context) -> pb.ObserveResponse:
        for observation in request.observations:
            observation.truncated = False
        return await predictor.Observe(request)

    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Predict": grpc.stream_stream_rpc_method_handler(
            predict, pb.PredictRequest.FromString, pb.PredictResponse.SerializeToString
        ),
        "Observe": grpc.unary_unary_rpc_method_handler(
            observe, pb.ObserveRequest.FromString, pb.ObserveResponse.SerializeToString
        ),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    server.add_insecure_port(address)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)

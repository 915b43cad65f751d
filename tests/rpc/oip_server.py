"""A server of the Open Inference Protocol as others write them: `oip_server.py PORT FAULT_FILE`.

It knows one model, "doubler": y = 2 x. A word in FAULT_FILE makes it misbehave: "die" at the next
inference, "unready" from now on, "fail" each inference with INTERNAL, or be "full".
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import grpc
import numpy as np

from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)

MODEL = "doubler"


class Doubler(GRPCInferenceServiceServicer):
    """Doubles."""

    def __init__(self, fault: Path) -> None:
        self._fault = fault

    def _wants(self, fault: str) -> bool:
        return self._fault.exists() and self._fault.read_text() == fault

    async def ServerReady(
        self, request: pb.ServerReadyRequest, context: object
    ) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=not self._wants("unready"))

    async def ModelReady(
        self, request: pb.ModelReadyRequest, context: object
    ) -> pb.ModelReadyResponse:
        return pb.ModelReadyResponse(ready=request.name == MODEL)

    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: object
    ) -> pb.ModelMetadataResponse:
        answer = pb.ModelMetadataResponse(name=MODEL, versions=["7"], platform="test")
        answer.inputs.add(name="x", datatype="FP32", shape=[-1, 2])
        answer.outputs.add(name="y", datatype="FP32", shape=[-1, 2])
        return answer

    async def ModelInfer(
        self, request: pb.ModelInferRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.ModelInferResponse:
        if self._wants("die"):
            os._exit(3)
        if self._wants("fail"):
            await context.abort(grpc.StatusCode.INTERNAL, "CUDA error")
        if self._wants("full"):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full")
        if request.model_name != MODEL:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no model {request.model_name}")
        (x,) = request.inputs
        if x.datatype != "FP32":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "x takes FP32")
        values = np.frombuffer(request.raw_input_contents[0], np.float32)
        answer = pb.ModelInferResponse(model_name=MODEL, model_version="7", id=request.id)
        answer.outputs.add(name="y", datatype="FP32", shape=x.shape)
        answer.raw_output_contents.append((2 * values).tobytes())
        return answer


async def main(port: int, fault: Path) -> None:
    """Serve for ever."""
    server = grpc.aio.server()
    add_GRPCInferenceServiceServicer_to_server(Doubler(fault), server)  # type: ignore[abstract]
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))

"""A server of the Open Inference Protocol as others write them: `oip_server.py PORT FAULT_FILE`.

It knows two models. "doubler": y = 2 x. "counter", decoupled: for x = [n, marked] the answers 1 to
n, of which the last says that it is the last if `marked` is 1; with the parameter `text` each is a
text, too, and with `tokens` says as Triton's vLLM backend does that it has two tokens and its
prompt five. A word in FAULT_FILE makes the
server misbehave: "die" at the next inference (the counter: after its first answer), "unready" from
now on, "fail" each inference with INTERNAL, be "full", or "never" end a count.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import grpc
import numpy as np

from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)
from services.kit.errors import ResourceExhausted
from services.kit.rpc.status import to_wire

MODEL, COUNTER = "doubler", "counter"


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
        return pb.ModelReadyResponse(ready=request.name in (MODEL, COUNTER))

    async def ModelConfig(
        self, request: pb.ModelConfigRequest, context: object
    ) -> pb.ModelConfigResponse:
        answer = pb.ModelConfigResponse()
        answer.config.model_transaction_policy.decoupled = request.name == COUNTER
        return answer

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
            full = ResourceExhausted("queue is full", retry_after_s=31 * 365 * 86400.0)
            await context.abort(*to_wire(full))
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

    async def ModelStreamInfer(
        self,
        request_iterator: AsyncIterator[pb.ModelInferRequest],
        context: grpc.aio.ServicerContext[object, object],
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        async for request in request_iterator:
            (x,) = request.inputs
            if x.datatype != "FP32":
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "x takes FP32")
            n, marked = np.frombuffer(request.raw_input_contents[0], np.float32)
            for number in count(1) if self._wants("never") else range(1, int(n) + 1):
                yield counted(request, number, last=bool(marked) and number == n)
                if self._wants("die"):
                    await asyncio.sleep(0.2)  # the answer is on its way
                    os._exit(3)
                if self._wants("fail"):
                    await context.abort(grpc.StatusCode.INTERNAL, "CUDA error")


def counted(
    request: pb.ModelInferRequest, number: int, *, last: bool
) -> pb.ModelStreamInferResponse:
    """Return one answer of the counter."""
    answer = pb.ModelInferResponse(model_name=COUNTER, model_version="7", id=request.id)
    answer.parameters["triton_final_response"].bool_param = last
    answer.outputs.add(name="y", datatype="FP32", shape=[1])
    answer.raw_output_contents.append(np.float32(number).tobytes())
    if "text" in request.parameters:
        answer.outputs.add(name="text_output", datatype="BYTES", shape=[1])
        answer.raw_output_contents.append(b"\x03\0\0\0one")
    if "tokens" in request.parameters:
        for name, tokens in (("num_input_tokens", 5), ("num_output_tokens", 2)):
            answer.outputs.add(name=name, datatype="UINT32", shape=[1])
            answer.raw_output_contents.append(np.uint32(tokens).tobytes())
    return pb.ModelStreamInferResponse(infer_response=answer)


async def main(port: int, fault: Path) -> None:
    """Serve for ever."""
    server = grpc.aio.server()
    add_GRPCInferenceServiceServicer_to_server(Doubler(fault), server)  # type: ignore[abstract]
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))

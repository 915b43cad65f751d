"""A client of streams, and a worker whose answers the test gives, part by part."""

from collections.abc import Iterable
from typing import Any

from cinquefoil.gpuagent.v1 import worker_pb2
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.support.router.router_service import RECEIPT, ScriptedWorker, World

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
FINAL = "triton_final_response"


def stream(world: World, *, metadata: Any = None) -> Any:
    return GRPCInferenceServiceStub(world.channel).ModelStreamInfer(metadata=metadata)


async def sent(call: Any, requests: Iterable[pb.ModelInferRequest], *, close: bool = True) -> Any:
    for request in requests:
        await call.write(request)
    if close:
        await call.done_writing()
    return call


async def answers(call: Any) -> list[pb.ModelStreamInferResponse]:
    return [answer async for answer in call]


def final(answer: pb.ModelStreamInferResponse) -> bool:
    return answer.infer_response.parameters[FINAL].bool_param


async def streaming(world: World, *, credits_: int = 4) -> ScriptedWorker:
    """Start a worker that holds its work and is of a decoupled model."""
    worker = await world.worker("a", lambda _: None, credits_=credits_)
    worker.decoupled = True
    await world.route(worker)
    return worker


def part(work: worker_pb2.Work, text: str = "", *, more: bool = True) -> worker_pb2.Result:
    """One result: a part of an answer, or the last; an empty text is an empty response."""
    request = pb.ModelInferRequest.FromString(work.request)
    response = b""
    if text:
        message = pb.ModelInferResponse(model_name="digits", model_version="1", id=request.id)
        message.raw_output_contents.append(text.encode())
        response = message.SerializeToString()
    receipt = None if more else RECEIPT
    return worker_pb2.Result(id=work.id, response=response, more=more, receipt=receipt)


def texts(found: Iterable[pb.ModelStreamInferResponse]) -> list[str]:
    return [answer.infer_response.raw_output_contents[0].decode() for answer in found]

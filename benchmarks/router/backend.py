"""A process that answers at once: as a plain server, and as the worker behind a router.

python -m benchmarks.router.backend PORT
"""

import sys
from typing import Any

import grpc
import uvloop

from benchmarks.router.messages import INFER, OPTIONS, answer
from benchmarks.router.peers import InstantWorker, Planner, add_control
from cinquefoil.gpuagent.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from services.kit.rpc import Limits, serving
from services.kit.rpc.channel import MAX_MESSAGE_BYTES

CREDITS = 64
SLO_LATENCY_S = 1.0


async def serve(port: int) -> None:
    """Be server, worker, planner and carbon until killed."""
    found = answer()

    async def infer(_: bytes, __: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return found

    def be_worker(server: grpc.aio.Server) -> None:
        add_WorkerServiceServicer_to_server(InstantWorker("segment", CREDITS), server)

    planner = Planner(SLO_LATENCY_S)  # type: ignore[abstract]  # a router calls nothing else
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((raw(infer),))
    add_control(server, planner)
    limits = Limits(message_bytes=MAX_MESSAGE_BYTES)
    async with serving("127.0.0.1:0", be_worker, (), limits=limits, transport="own") as worker:
        await planner.publish([(f"127.0.0.1:{worker.port}", "segment", CREDITS)])
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()


def raw(infer: Any) -> grpc.GenericRpcHandler:
    """Return a handler of ModelInfer from bytes to bytes."""
    _, service, method = INFER.split("/")
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method: grpc.unary_unary_rpc_method_handler(infer)
    }
    return grpc.method_handlers_generic_handler(service, handlers)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))

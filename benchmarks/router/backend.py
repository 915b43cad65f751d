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

CREDITS = 64
SLO_LATENCY_S = 1.0


async def serve(port: int) -> None:
    """Be server, worker, planner and carbon until killed."""
    found = answer()

    async def infer(_: bytes, __: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return found

    planner = Planner(SLO_LATENCY_S)  # type: ignore[abstract]  # a router calls nothing else
    address = f"127.0.0.1:{port}"
    await planner.publish([(address, "segment", CREDITS)])
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((raw(infer),))
    add_WorkerServiceServicer_to_server(InstantWorker("segment", CREDITS), server)
    add_control(server, planner)
    server.add_insecure_port(address)
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

"""A process that answers at once: as a plain server, and as the worker behind a router.

python -m benchmarks.router.backend PORT [FOLDER]

With the folder of an authority it speaks TLS, and its worker requires a certificate.
"""

import sys
from pathlib import Path
from typing import Any

import grpc
import uvloop

from benchmarks.router.messages import INFER, OPTIONS, answer
from benchmarks.router.peers import InstantWorker, Planner, add_control
from benchmarks.router.security import Security
from services.gpuagent.worker.servicer import add_worker
from services.kit.process.memory import keep_large_blocks
from services.kit.rpc import Limits, serving
from services.kit.rpc.channel import MAX_MESSAGE_BYTES

CREDITS = 64
SLO_LATENCY_S = 1.0


async def serve(port: int, security: Security | None) -> None:
    """Be server, worker, planner and carbon until killed."""
    found = answer()
    keep_large_blocks()  # as workers do

    async def infer(_: bytes, __: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return found

    def be_worker(server: grpc.aio.Server) -> None:
        add_worker(InstantWorker("segment", CREDITS).Execute, server)

    planner = Planner(SLO_LATENCY_S)  # type: ignore[abstract]  # a router calls nothing else
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((raw(infer),))
    add_control(server, planner)
    limits = Limits(message_bytes=MAX_MESSAGE_BYTES)
    tls = None if security is None else security.tls("planner")
    at = "127.0.0.1:0"
    async with serving(at, be_worker, (), limits=limits, tls=tls, transport="own") as worker:
        await planner.publish([(f"127.0.0.1:{worker.port}", "segment", CREDITS)])
        if security is None:
            server.add_insecure_port(f"127.0.0.1:{port}")
        else:
            server.add_secure_port(f"127.0.0.1:{port}", _credentials(security))
        await server.start()
        await server.wait_for_termination()


def _credentials(security: Security) -> grpc.ServerCredentials:
    files = security.files("planner")
    pair = files["key"].read_bytes(), files["certificate"].read_bytes()
    return grpc.ssl_server_credentials([pair])


def raw(infer: Any) -> grpc.GenericRpcHandler:
    """Return a handler of ModelInfer from bytes to bytes."""
    _, service, method = INFER.split("/")
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method: grpc.unary_unary_rpc_method_handler(infer)
    }
    return grpc.method_handlers_generic_handler(service, handlers)


if __name__ == "__main__":
    security = Security(Path(sys.argv[2]), "") if len(sys.argv) > 2 else None
    uvloop.run(serve(int(sys.argv[1]), security))

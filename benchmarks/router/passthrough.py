"""The smallest proxy that grpc.aio allows: raw bytes there, raw bytes back.

python -m benchmarks.router.passthrough PORT BACKEND_PORT
"""

import sys
from typing import Any

import grpc
import uvloop

from benchmarks.router import messages
from benchmarks.router.backend import raw


async def serve(port: int, backend_port: int) -> None:
    """Hand every request on and every answer back until killed."""
    async with messages.channel(backend_port) as backend:
        call = messages.infer(backend)

        async def infer(body: bytes, _: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            answer: bytes = await call(body)
            return answer

        server = grpc.aio.server(options=messages.OPTIONS)
        server.add_generic_rpc_handlers((raw(infer),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))

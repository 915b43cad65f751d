"""An HTTP server in front of the router's gRPC: what a service of its own would be, at its least.

python -m benchmarks.router.http_proxy PORT GRPC_PORT ROUTER_PORT
"""

import asyncio
import sys
from typing import Any

import grpc
import uvloop
from aiohttp import web

from benchmarks.router import messages
from benchmarks.router.backend import raw
from services.router.edge import tensor_json


async def main(port: int, grpc_port: int, router_port: int) -> None:
    """Serve for ever; the gRPC port, passed on, shows that this process has started."""
    async with messages.channel(router_port) as channel:
        infer = messages.infer(channel)

        async def handle(request: web.Request) -> web.Response:
            document, after = tensor_json.read(await request.read(), None)
            body = tensor_json.message(document, request.match_info["model"], "", after)
            content, _ = tensor_json.answer(await infer(body), document)
            return web.Response(body=content, content_type="application/json")

        async def passed_on(request: bytes, _: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            answer: bytes = await infer(request)
            return answer

        app = web.Application()
        app.router.add_post("/v2/models/{model}/infer", handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((raw(passed_on),))
        server.add_insecure_port(f"127.0.0.1:{grpc_port}")
        await server.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(*map(int, sys.argv[1:])))

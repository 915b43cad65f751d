"""A server of the OpenAI API that decodes like a GPU, without one: `decoder.py PORT SLOTS STEP_S`.

Every step it gives each running text one token; texts beyond its slots wait. It needs hardly any
processor time, so that what stands between it and its clients shows.
"""

import asyncio
import json
import sys
from typing import Final

from aiohttp import web

MODEL: Final = "decoder"
_HEAD: Final = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL}


class Decoder:
    """Decodes so many texts at a time, in steps of so many seconds."""

    def __init__(self, slots: int, step_s: float) -> None:
        self._room = asyncio.Semaphore(slots)
        self._step_s = step_s
        self._next: asyncio.Future[None] | None = None

    async def step(self) -> None:
        """Wait for the end of the step that runs."""
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
            now_s = loop.time()
            loop.call_at(now_s + self._step_s - now_s % self._step_s, self._stepped, self._next)
        await asyncio.shield(self._next)

    def _stepped(self, ended: asyncio.Future[None]) -> None:
        self._next = None
        ended.set_result(None)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Stream a completion, a token in an event, as vLLM does."""
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async with self._room:
            for left in range(body["max_tokens"] - 1, -1, -1):
                await self.step()
                choice = {"index": 0, "text": " a", "finish_reason": None if left else "length"}
                await response.write(_event({"choices": [choice], "usage": None}))
        usage = {"prompt_tokens": 1, "completion_tokens": body["max_tokens"]}
        await response.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response


def _event(said: dict[str, object]) -> bytes:
    return f"data: {json.dumps(_HEAD | said)}\n\n".encode()


async def _healthy(_: web.Request) -> web.Response:
    return web.Response()


async def _models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": MODEL, "max_model_len": 4096}]})


if __name__ == "__main__":
    port, slots, step_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    app = web.Application()
    app.add_routes(
        [
            web.get("/health", _healthy),
            web.get("/v1/models", _models),
            web.post("/v1/completions", Decoder(slots, step_s).complete),
        ]
    )
    web.run_app(app, host="127.0.0.1", port=port, print=None, handler_cancellation=True)

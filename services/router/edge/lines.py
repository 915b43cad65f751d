"""Many requests that can wait in one call: the batch service's, answered as each is done.

The body has one request a line, each a body of the path that the query names. The answer has a line
of JSON for each request as it ends, with its number, from 0, its status and the size of its body,
and then that body. An empty line says that the others still wait.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from aiohttp import web
from pydantic_core import to_json

from services.kit.api_requests import PATHS
from services.kit.errors import InvalidArgument, ServiceError
from services.kit.http.guard import Guard
from services.kit.http.slow_clients import write
from services.kit.http.statuses import refusal
from services.router.core.accounting.receipts import WAITED
from services.router.edge.calls import LINES, WAIT
from services.router.edge.inference_protocol import InferenceProtocol, error_form
from services.router.edge.openai_api import OpenAiApi
from services.router.edge.openai_messages import error_form as openai_form

_RPC: Final = "/inference.GRPCInferenceService/ModelInfer"
_MOST_LINES: Final = 1024
_MODEL: Final = re.compile(r"/v2/models/([^/]{1,256})/infer")
_QUIET_S: Final = 15.0
"""Time without an answer after which an empty line leaves, s."""
_MODEL_PATH: Final = "/v2/models/MODEL/infer"


class Lines:
    """The handler.

    Args:
        tensors: Answers /v2/models/MODEL/infer.
        texts: Answers paths of the OpenAI API.
        guard: Around it.
    """

    def __init__(self, tensors: InferenceProtocol, texts: OpenAiApi, guard: Guard) -> None:
        self._tensors, self._texts, self._guard = tensors, texts, guard

    def routes(self) -> Iterator[web.RouteDef]:
        """Yield the route."""
        yield web.post(LINES, self._guard.around(f"POST {LINES}", _RPC, error_form, self._answer))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Answer many requests that can wait, one a line, each as it ends."""
        path = _path_of(request)
        async with self._guard.body(request) as body:
            few = body.count(b"\n") <= _MOST_LINES  # empty ones too: a list of them takes long
            lines = [each for each in body.split(b"\n") if each] if few else []
        if not 0 < len(lines) <= _MOST_LINES:
            raise InvalidArgument.at("body", f"must have 1 to {_MOST_LINES} lines")
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        await response.prepare(request)
        done: asyncio.Queue[bytes] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            for number, line in enumerate(lines):
                tasks.create_task(self._one(request, path, number, line, done))
            left = len(lines)
            del lines, body
            while left:
                content = await _ready(done)
                left -= len(content)
                await write(response, b"".join(content) or b"\n")
        await response.write_eof()
        return response

    async def _one(
        self,
        request: web.Request,
        path: str,
        number: int,
        line: bytearray,
        done: asyncio.Queue[bytes],
    ) -> None:
        model = _MODEL.fullmatch(path)
        try:
            found: web.StreamResponse
            if model:
                found = await self._tensors.answer(request, model[1], line)
            else:
                found = await self._texts.answer(request, path, line)
        except ServiceError as error:
            found = refusal(error, error_form if model else openai_form)
        done.put_nowait(_framed(number, found))


async def _ready(done: asyncio.Queue[bytes]) -> list[bytes]:
    """Return all answers that are done, at least one; none: it takes long."""
    found = list[bytes]()
    with suppress(TimeoutError):
        async with asyncio.timeout(_QUIET_S):
            found.append(await done.get())
    while not done.empty():
        found.append(done.get_nowait())
    return found


def _framed(number: int, response: web.StreamResponse) -> bytes:
    content = response.body if isinstance(response, web.Response) else b""
    if not isinstance(content, bytes):
        content = b""
    head = {"line": number, "status": response.status, "bytes": len(content)}
    retry_ms, waited_s = response.headers.get("retry-after-ms"), response.headers.get(WAITED)
    if retry_ms is not None:
        head["retry_after_ms"] = int(retry_ms)
    if waited_s is not None:
        head["waited_ms"] = round(float(waited_s) * 1e3)
    return b"%b\n%b\n" % (to_json(head), content)


def _path_of(request: web.Request) -> str:
    """Return the path that the requests of a call are for.

    Raises:
        InvalidArgument: It is none, or the call does not say until when they can wait.
    """
    path = request.query.get("path", "")
    if path not in PATHS and not _MODEL.fullmatch(path):
        allowed = ", ".join(sorted((*PATHS, _MODEL_PATH)))
        raise InvalidArgument.at("path", f"must be one of {allowed}, got {path[:80]!r}")
    if WAIT not in request.headers:
        raise InvalidArgument.at(WAIT, "required: the time until which the requests can wait")
    return path

"""OpenAI's Files and Batch API at the router's address: passed on to the batch service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import aiohttp
from aiohttp import web

from services.kit.errors import Unavailable
from services.kit.http.client import HttpClient
from services.kit.http.context import HttpContext
from services.kit.http.guard import Guard
from services.kit.http.slow_clients import pieces, write
from services.kit.rpc import caller
from services.kit.rpc.client_identity import CLIENT_ID, client_of
from services.router.edge.openai_messages import error_form

_RPC: Final = "/inference.GRPCInferenceService/ModelInfer"
_PATHS: Final = ("/v1/files", "/v1/files/{path:.+}", "/v1/batches", "/v1/batches/{path:.+}")
_REQUEST_HEADERS: Final = ("Content-Type", "Accept")
_ANSWER_HEADERS: Final = ("Content-Type", "Content-Length", "Retry-After")
_PIECE_BYTES: Final = 2**16


class Batches:
    """Passes requests on, with the identity of their callers.

    Args:
        http: Connections to the batch service.
        guard: Around the handler.
    """

    def __init__(self, http: HttpClient, guard: Guard) -> None:
        self._http, self._guard = http, guard

    def routes(self) -> Iterator[web.RouteDef]:
        """Yield the routes."""
        for path in _PATHS:
            yield web.route("*", path, self._guard.around(path, _RPC, error_form, self._pass_on))

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        """Pass a request of OpenAI's Files or Batch API on to the batch service, as it comes."""
        given = request.headers
        headers = {name: given[name] for name in _REQUEST_HEADERS if name in given}
        headers[CLIENT_ID] = client_of(HttpContext(request), caller()).removeprefix("id:")
        body = pieces(request) if request.body_exists else None
        try:
            async with self._http.request(
                request.method, request.rel_url.raw_path_qs, data=body, headers=headers
            ) as answer:
                kept = {n: answer.headers[n] for n in _ANSWER_HEADERS if n in answer.headers}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                    await write(response, piece)
                await response.write_eof()
                return response
        except (aiohttp.ClientConnectionError, OSError) as error:
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client has gone") from error
            raise Unavailable(
                "the batch service does not answer; see `cinquefoil status`", retry_after_s=1.0
            ) from error

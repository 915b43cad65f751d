"""OpenAI's Files and Batch API: /v1/files, /v1/batches.

Source: OpenAI, "API reference": files, batch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import BodyPartReader, MultipartReader, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from pydantic_core import from_json, to_json

from services.batch.edge.documents import (
    batch_document,
    error_form,
    file_document,
    listed,
    window_s,
)
from services.batch.runtime.desk import Desk, Owner, check_purpose
from services.kit.config import BatchService
from services.kit.errors import InvalidArgument, NotFound, ServiceError
from services.kit.http.context import HttpContext
from services.kit.http.guard import Guard
from services.kit.http.server import serving_http
from services.kit.http.slow_clients import write
from services.kit.rpc import Access, caller
from services.kit.rpc.client_identity import client_of
from services.kit.segment import whole_number

if TYPE_CHECKING:
    from services.kit.config import Tls

_RPC: Final = "/cinquefoil.batch.v1.BatchService/"
_MIB: Final = 2**20
_MOST_JSON: Final = 64 * 2**10
_PIECE_BYTES: Final = 256 * 2**10
_LONGEST_FIELD: Final = 1024
_MOST_PARTS: Final = 16
_MOST_LINES: Final = 1024


@asynccontextmanager
async def edge(
    settings: BatchService, desk: Desk, *, tls: Tls | None, access: Access | None, grace_s: float
) -> AsyncIterator[int]:
    """Serve HTTP at `batch.http_listen` while the block runs, and yield the port; 0: none.

    Args:
        settings: `batch`.
        desk: Takes files and batches.
        tls: Certificate of the server; None: plaintext.
        access: Who may call what; None: everybody everything.
        grace_s: Time that requests in flight have to end, s.
    """
    if not settings.http_listen:
        yield 0
        return
    guard = Guard(
        access,
        max_requests=settings.max_requests,
        max_request_bytes=_MOST_JSON,
        free_bytes=settings.max_requests * _MOST_JSON,
        section="batch",
    )
    app = web.Application()
    app.add_routes(BatchApi(desk, guard).routes())
    unknown = guard.around("unknown HTTP path", f"{_RPC}List", error_form, _unknown)
    app.router.add_route("*", "/{path:.*}", unknown)
    async with serving_http(
        settings.http_listen,
        app,
        what="batches",
        tls=tls,
        max_connections=settings.max_connections,
        grace_s=grace_s,
    ) as port:
        yield port


class BatchApi:
    """The handlers.

    Args:
        desk: Takes files and batches.
        guard: Around every handler.
    """

    def __init__(self, desk: Desk, guard: Guard) -> None:
        self._desk, self._guard = desk, guard

    def routes(self) -> Iterator[web.RouteDef]:
        """Yield the routes."""
        for method, path, rpc, handler in (
            (web.post, "/v1/files", "Upload", self._upload),
            (web.get, "/v1/files", "ListFiles", self._files),
            (web.get, "/v1/files/{id}", "GetFile", self._file),
            (web.delete, "/v1/files/{id}", "DeleteFile", self._delete),
            (web.get, "/v1/files/{id}/content", "Download", self._content),
            (web.post, "/v1/batches", "Submit", self._submit),
            (web.get, "/v1/batches", "List", self._batches),
            (web.get, "/v1/batches/{id}", "Get", self._batch),
            (web.post, "/v1/batches/{id}/cancel", "Cancel", self._cancel),
        ):
            name = f"{method.__name__.upper()} {path}"
            yield method(path, self._guarded(name, rpc, handler))

    def _guarded(self, method: str, rpc: str, handler: Handler) -> Handler:
        return self._guard.around(method, f"{_RPC}{rpc}", error_form, handler)

    # ---- files ---------------------------------------------------------------------------------

    async def _upload(self, request: web.Request) -> web.Response:
        """Store the part `file` of a form as it comes; `purpose` may stand before or behind it."""
        if not request.content_type.startswith("multipart/"):
            raise InvalidArgument.at("body", "must be multipart/form-data with `file`, `purpose`")
        owner, purpose, file = _owner(request), "", None
        try:
            content = cast("StreamReader", _FewLines(request.content))
            reader = MultipartReader(request.headers, content)
            async for part in _parts(reader):
                if part.name == "purpose":
                    purpose = await _text(part)
                elif part.name == "file" and file is None:
                    file = await self._desk.upload(owner, part.filename or "", _pieces(part))
            check_purpose(purpose)
        except (ValueError, AssertionError, HttpProcessingError, ServiceError) as error:
            if file is not None:
                await self._desk.delete(owner, file.id)
            if isinstance(error, ServiceError):
                raise
            raise InvalidArgument.at("body", f"damaged: {str(error)[:200]}") from None
        if file is None:
            raise InvalidArgument.at("file", "required")
        return _json(file_document(file))

    async def _files(self, request: web.Request) -> web.Response:
        query = request.query
        found, more = await self._desk.files(
            _owner(request),
            purpose=query.get("purpose", ""),
            after=query.get("after", ""),
            limit=_limit(request, 10_000),
        )
        return _json(listed([file_document(each) for each in found], more))

    async def _file(self, request: web.Request) -> web.Response:
        return _json(file_document(await self._desk.file(_owner(request), _id(request))))

    async def _delete(self, request: web.Request) -> web.Response:
        await self._desk.delete(_owner(request), _id(request))
        return _json({"id": _id(request), "object": "file", "deleted": True})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        owner = _owner(request)
        file = await self._desk.file(owner, _id(request))
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        response.content_length = file.size_bytes
        await response.prepare(request)
        async for piece in self._desk.content(owner, file.id):
            await write(response, piece)
        await response.write_eof()
        return response

    # ---- batches -------------------------------------------------------------------------------

    async def _submit(self, request: web.Request) -> web.Response:
        async with self._guard.body(request) as body:
            try:
                given = from_json(bytes(body))
            except ValueError as error:
                raise InvalidArgument.at("body", f"not JSON: {error}") from None
        if not isinstance(given, dict):
            raise InvalidArgument.at("body", "must be an object")
        metadata = given.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise InvalidArgument.at("metadata", "must be an object")
        batch = await self._desk.submit(
            _owner(request),
            file_id=_string(given, "input_file_id"),
            endpoint=_string(given, "endpoint"),
            window_s=window_s(given.get("completion_window", "24h")),
            metadata=metadata,
        )
        return _json(batch_document(batch))

    async def _batches(self, request: web.Request) -> web.Response:
        found, more = await self._desk.batches(
            _owner(request), after=request.query.get("after", ""), limit=_limit(request, 100)
        )
        return _json(listed([batch_document(each) for each in found], more))

    async def _batch(self, request: web.Request) -> web.Response:
        return _json(batch_document(await self._desk.batch(_owner(request), _id(request))))

    async def _cancel(self, request: web.Request) -> web.Response:
        return _json(batch_document(await self._desk.cancel(_owner(request), _id(request))))


async def _unknown(request: web.Request) -> web.Response:
    raise NotFound(
        f"no {request.method} {request.path}; see docs/batches.md", reason="NO_SUCH_PATH"
    )


def _owner(request: web.Request) -> Owner:
    return Owner.of(client_of(HttpContext(request), caller()), caller())


def _id(request: web.Request) -> str:
    return request.match_info["id"]


def _string(given: dict[str, Any], field: str) -> str:
    found = given.get(field)
    if not isinstance(found, str) or not found:
        raise InvalidArgument.at(field, "required, a string")
    return found


def _limit(request: web.Request, most: int) -> int:
    given = request.query.get("limit", "0")
    if (found := whole_number(given, most)) is None:
        raise InvalidArgument.at("limit", f"must be 1 to {most}, got {given[:20]!r}")
    return found


class _FewLines:
    """Content of a form whose lines outside its parts are counted: aiohttp passes over any number.

    Args:
        content: It.
    """

    def __init__(self, content: StreamReader) -> None:
        self._content, self._left = content, _MOST_LINES
        self.read, self.at_eof = content.read, content.at_eof
        self.unread_data = content.unread_data

    async def readline(self, **given: Any) -> bytes:
        """Return the next line.

        Raises:
            ValueError: There are too many.
        """
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {_MOST_LINES} lines outside the parts")
        return await self._content.readline(**given)


async def _parts(reader: MultipartReader) -> AsyncIterator[BodyPartReader]:
    for _ in range(_MOST_PARTS):
        part = await reader.next()
        if part is None:
            return
        if not isinstance(part, BodyPartReader):
            raise InvalidArgument.at("body", "parts must not have parts themselves")
        yield part


async def _text(part: BodyPartReader) -> str:
    found = bytearray()
    while chunk := await part.read_chunk(_LONGEST_FIELD):
        found += chunk
        if len(found) > _LONGEST_FIELD:
            raise InvalidArgument.at(str(part.name), f"longer than {_LONGEST_FIELD} bytes")
    return found.decode(errors="replace")


async def _pieces(part: BodyPartReader) -> AsyncIterator[bytes]:
    while chunk := await part.read_chunk(_PIECE_BYTES):
        yield chunk


def _json(document: Any) -> web.Response:
    return web.Response(body=to_json(document), content_type="application/json")

"""BatchService: messages <-> the desk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from cinquefoil.batch.v1 import batch_pb2 as pb
from cinquefoil.batch.v1.batch_pb2_grpc import BatchServiceServicer
from cinquefoil.batch.v1.records import Batch, File
from cinquefoil.planner.v1 import waiting_pb2
from services.batch.runtime.desk import Desk, Owner, check_purpose
from services.kit.errors import InvalidArgument
from services.kit.rpc import caller
from services.kit.rpc.client_identity import client_of
from services.kit.rpc.record_mapping import to_message


def _owner(context: Any) -> Owner:
    return Owner.of(client_of(context, caller()), caller())


def _file(file: File) -> pb.File:
    return to_message(file, pb.File)


def _batch(batch: Batch) -> pb.Batch:
    return to_message(batch, pb.Batch)


def _instant(request: pb.ReadAccountRequest, name: str) -> datetime | None:
    if not request.HasField(name):  # type: ignore[arg-type]
        return None
    try:
        return getattr(request, name).ToDatetime(tzinfo=UTC)  # type: ignore[no-any-return]
    except (ValueError, OverflowError) as error:
        raise InvalidArgument.at(name, str(error)) from error


class BatchServicer(BatchServiceServicer):
    """Serves the desk; the guard interceptor maps its errors.

    Args:
        desk: Takes files and batches.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def Upload(self, request_iterator: AsyncIterator[pb.UploadRequest], context: Any) -> Any:
        """Store a file as it comes."""
        first = await anext(aiter(request_iterator), pb.UploadRequest())
        if first.WhichOneof("part") != "head":
            raise InvalidArgument("head: required in the first message", field="head")

        async def content() -> AsyncIterator[bytes]:
            async for each in request_iterator:
                yield each.content

        head = first.head
        check_purpose(head.purpose)
        file = await self._desk.upload(_owner(context), head.name, content())
        return pb.UploadResponse(file=_file(file))

    async def ListFiles(self, request: pb.ListFilesRequest, context: Any) -> pb.ListFilesResponse:
        """Return the caller's files."""
        found, more = await self._desk.files(
            _owner(context), purpose=request.purpose, after=request.after, limit=request.limit
        )
        return pb.ListFilesResponse(files=map(_file, found), has_more=more)

    async def GetFile(self, request: pb.GetFileRequest, context: Any) -> pb.GetFileResponse:
        """Return a file's description."""
        return pb.GetFileResponse(file=_file(await self._desk.file(_owner(context), request.id)))

    async def Download(
        self, request: pb.DownloadRequest, context: Any
    ) -> AsyncIterator[pb.DownloadResponse]:
        """Stream a file's content."""
        async for piece in self._desk.content(_owner(context), request.id):
            yield pb.DownloadResponse(content=piece)

    async def DeleteFile(
        self, request: pb.DeleteFileRequest, context: Any
    ) -> pb.DeleteFileResponse:
        """Delete a file."""
        await self._desk.delete(_owner(context), request.id)
        return pb.DeleteFileResponse()

    async def Submit(self, request: pb.SubmitRequest, context: Any) -> pb.SubmitResponse:
        """Begin a batch."""
        batch = await self._desk.submit(
            _owner(context),
            file_id=request.input_file_id,
            endpoint=request.endpoint,
            window_s=request.window.ToTimedelta().total_seconds(),
            metadata=request.metadata,
        )
        return pb.SubmitResponse(batch=_batch(batch))

    async def Get(self, request: pb.GetRequest, context: Any) -> pb.GetResponse:
        """Return a batch."""
        return pb.GetResponse(batch=_batch(await self._desk.batch(_owner(context), request.id)))

    async def List(self, request: pb.ListRequest, context: Any) -> pb.ListResponse:
        """Return batches."""
        found, more = await self._desk.batches(
            _owner(context),
            after=request.after,
            limit=request.limit,
            all_owners=request.all_owners,
        )
        return pb.ListResponse(batches=map(_batch, found), has_more=more)

    async def Cancel(self, request: pb.CancelRequest, context: Any) -> pb.CancelResponse:
        """End a batch early."""
        return pb.CancelResponse(batch=_batch(await self._desk.cancel(_owner(context), request.id)))

    async def Watch(
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.WatchResponse]:
        """Stream a batch as it changes."""
        async for batch in self._desk.watch(_owner(context), request.id):
            yield pb.WatchResponse(batch=_batch(batch))

    async def ReadAccount(
        self, request: pb.ReadAccountRequest, context: Any
    ) -> pb.ReadAccountResponse:
        """Return what batches took, by owner and model."""
        found = await self._desk.account(
            _owner(context), _instant(request, "since"), _instant(request, "until")
        )
        entries = [to_message(each, pb.WaitingAccount) for each in found]
        return pb.ReadAccountResponse(entries=entries)

    async def GetReleases(
        self, request: pb.GetReleasesRequest, context: Any
    ) -> pb.GetReleasesResponse:
        """Return when waiting requests run."""
        found = [to_message(each, waiting_pb2.WaitingRelease) for each in self._desk.releases()]
        return pb.GetReleasesResponse(releases=found)

    async def Results(
        self, request: pb.ResultsRequest, context: Any
    ) -> AsyncIterator[pb.ResultsResponse]:
        """Stream results in the order of lines."""
        async for lines in self._desk.results(_owner(context), request.id):
            yield pb.ResultsResponse(lines=lines)

"""Submits batches, shows them, and fetches their results."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

import typer
from pydantic_core import from_json
from rich.console import Group, RenderableType

from cinquefoil.batch.v1 import batch_pb2 as pb
from services.cli.client import Clients, connected
from services.cli.console.durations import seconds
from services.cli.console.messages import Messages, word
from services.cli.console.output import show as printed
from services.cli.console.releases import sentences
from services.kit.config.loader import load
from services.kit.errors import InvalidArgument, NotFound
from services.kit.whole_file import replacing

if TYPE_CHECKING:
    from cinquefoil.batch.v1.batch_pb2_grpc import BatchServiceAsyncStub

_PIECE_BYTES: Final = 256 * 2**10
_ENDED: Final = (
    pb.BATCH_STATE_COMPLETED,
    pb.BATCH_STATE_FAILED,
    pb.BATCH_STATE_EXPIRED,
    pb.BATCH_STATE_CANCELLED,
)
_LONG_S: Final = 3600.0


async def submit(config: Path, file: Path, within: str, *, follow: bool, as_json: bool) -> None:
    """Store a file of requests, begin a batch, and print its id.

    Raises:
        InvalidArgument: The file has no request, or the window cannot be.
        ServiceError: The deployment has no batch service, or it refuses the batch.
    """
    endpoint = _endpoint(file)
    try:
        window_s = seconds(within)
    except ValueError as error:
        raise InvalidArgument(f"--within: {error}") from error
    async with connected(load(config)) as clients:
        stub = batch_stub(clients)
        batch = await begun(stub, file, endpoint, window_s)
        if follow and not as_json:
            typer.echo(batch.id)
            await _watched(stub, batch.id)
        else:
            printed(batch, lambda: batch.id, as_json=as_json)


async def begun(
    stub: BatchServiceAsyncStub, file: Path, endpoint: str, window_s: float
) -> pb.Batch:
    """Store a file of requests, and begin a batch of it."""
    stored = (await stub.Upload(_upload(file), timeout=_LONG_S)).file
    request = pb.SubmitRequest(input_file_id=stored.id, endpoint=endpoint)
    request.window.FromMilliseconds(round(window_s * 1e3))
    return (await stub.Submit(request)).batch


async def list_batches(config: Path, *, all_owners: bool, as_json: bool) -> None:
    """Print the newest batches."""
    async with connected(load(config)) as clients:
        found = (await batch_stub(clients).List(pb.ListRequest(all_owners=all_owners))).batches
    printed(list(found), lambda: table(found), as_json=as_json)


async def show(config: Path, id_: str, *, as_json: bool) -> None:
    """Print one batch."""
    async with connected(load(config)) as clients:
        stub = batch_stub(clients)
        batch = (await stub.Get(pb.GetRequest(id=id_))).batch
        found = (await stub.GetReleases(pb.GetReleasesRequest())).releases
    releases = [each for each in found if each.model == batch.model]
    plan = releases if batch.HasField("outlook") else ()
    printed(
        batch,
        lambda: Group(Messages().details(batch), *sentences(plan)),
        as_json=as_json,
    )


async def watch(config: Path, id_: str) -> None:
    """Print a batch's progress until it has ended."""
    async with connected(load(config)) as clients:
        await _watched(batch_stub(clients), id_)


async def cancel(config: Path, id_: str) -> None:
    """End a batch early, and print what it has become."""
    async with connected(load(config)) as clients:
        batch = (await batch_stub(clients).Cancel(pb.CancelRequest(id=id_))).batch
    typer.echo(f"{batch.id}: {word(pb.BatchState.DESCRIPTOR, batch.state)}")


async def results(config: Path, id_: str, out: Path | None) -> None:
    """Write a batch's results to a file, or to standard output."""
    async with connected(load(config)) as clients:
        stream = batch_stub(clients).Results(pb.ResultsRequest(id=id_), timeout=_LONG_S)
        if out is None:
            await _copied(stream, sys.stdout.buffer)
            return
        with replacing(out) as draft, draft.open("wb") as file:
            await _copied(stream, file)


async def _copied(stream: Any, out: IO[bytes]) -> None:
    async for response in stream:
        for line in response.lines:
            out.write(line + b"\n")
    out.flush()


async def _watched(stub: BatchServiceAsyncStub, id_: str) -> None:
    stream = cast(Any, stub.Watch(pb.WatchRequest(id=id_), timeout=None))
    said = ""
    async with aclosing(stream):
        async for response in stream:
            batch = response.batch
            typer.echo(
                f"{word(pb.BatchState.DESCRIPTOR, batch.state)}: {batch.completed} of "
                f"{batch.lines} answered, {batch.failed} failed, "
                f"{batch.energy_j:.0f} J, {batch.carbon_gco2e:.3f} gCO2e"
            )
            if batch.outlook.text and batch.outlook.text != said:
                said = batch.outlook.text
                typer.echo(f"  {said}")
            for each in batch.errors:
                typer.echo(f"  line {each.line}: {each.message}")


def table(batches: Sequence[pb.Batch]) -> RenderableType:
    """Return one row per batch."""
    if not batches:
        return "No batch yet. Begin one: cinquefoil batch submit FILE"
    return Messages().table(
        "Batches",
        batches,
        {
            "id": "id",
            "model": "model",
            "state": lambda each: word(pb.BatchState.DESCRIPTOR, each.state),
            ">answered": lambda each: f"{each.completed}/{each.lines}",
            ">failed": "failed",
            ">gCO2e": lambda each: f"{each.carbon_gco2e:.3f}",
        },
    )


def _endpoint(file: Path) -> str:
    """Return the path that a file's first line names."""
    try:
        with file.open("rb") as lines:
            first = next((line for line in lines if line.strip()), b"")
        found = from_json(first).get("url") if first else None
    except OSError as error:
        raise InvalidArgument(f"{file}: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise InvalidArgument(f"{file}: the first line is no JSON object") from error
    if not isinstance(found, str):
        raise InvalidArgument(f'{file}: the first line has no "url"')
    return found


async def _upload(file: Path) -> AsyncIterator[pb.UploadRequest]:
    yield pb.UploadRequest(head=pb.UploadHead(name=file.name, purpose="batch"))
    with file.open("rb") as content:
        while piece := content.read(_PIECE_BYTES):
            yield pb.UploadRequest(content=piece)


def batch_stub(clients: Clients) -> BatchServiceAsyncStub:
    """Return the client of the batch service.

    Raises:
        NotFound: The deployment has none.
    """
    if clients.batch is None:
        raise NotFound(
            "the deployment has no batch service: `batch: {}` in its file adds one, and "
            "`cinquefoil batch serve`, or `cinquefoil up`, starts it"
        )
    return clients.batch

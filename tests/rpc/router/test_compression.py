"""Compressed requests and answers, measured on the wire."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
import pytest

from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.support.router.router_service import infer_request, running

ROWS = 50_000
REQUEST_BYTES, ANSWER_BYTES = 16 * ROWS, 4 * ROWS


class Meter:
    """A TCP relay that counts. Attributes: sent_bytes, received_bytes (as the client sees it)."""

    def __init__(self) -> None:
        self.address = ""
        self.sent_bytes = self.received_bytes = 0


@asynccontextmanager
async def metered(target: str) -> AsyncIterator[Meter]:
    meter = Meter()
    host, _, port = target.rpartition(":")

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, name: str) -> None:
        try:
            with suppress(ConnectionError):
                while data := await source.read(65536):
                    setattr(meter, name, getattr(meter, name) + len(data))
                    sink.write(data)
                    await sink.drain()
        finally:
            sink.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to_behind = await asyncio.open_connection(host, int(port))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pump(reader, to_behind, "sent_bytes"))
            tasks.create_task(pump(behind, writer, "received_bytes"))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    meter.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield meter


@pytest.mark.parametrize("client", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
@pytest.mark.parametrize("answers", ["none", "gzip"])
async def test_each_side_compresses_what_it_sends(client: grpc.Compression, answers: str) -> None:
    request = infer_request()
    request.inputs[0].shape[:] = [ROWS, 4]
    request.raw_input_contents[0] = b"\0" * REQUEST_BYTES
    async with running(compression=answers) as world:
        await world.route(await world.worker("a"))
        async with (
            metered(world.address) as meter,
            grpc.aio.insecure_channel(meter.address, compression=client) as channel,
        ):
            answer = await GRPCInferenceServiceStub(channel).ModelInfer(request)

    assert isinstance(answer, pb.ModelInferResponse)
    assert len(answer.raw_output_contents[0]) == ANSWER_BYTES
    plain_request = client is grpc.Compression.NoCompression
    assert (meter.sent_bytes > REQUEST_BYTES) is plain_request
    assert (meter.received_bytes > ANSWER_BYTES) is (answers == "none")


async def test_a_request_that_is_too_large_is_so_before_compression() -> None:
    """A small message that unpacks into a large one is no way around the limit."""
    async with running(max_request_bytes=2048) as world:
        channel = grpc.aio.insecure_channel(world.address, compression=grpc.Compression.Gzip)
        request = infer_request()
        request.raw_input_contents[0] = b"\0" * 100_000
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await GRPCInferenceServiceStub(channel).ModelInfer(request)
        await channel.close()

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "router.max_request_bytes allows 2048" in str(caught.value.details())

"""PyPI's `h2` as the other side: what it accepts is the protocol."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kit.h2.messages import PREFIX
from services.kit.rpc import Limits
from tests.support.h2_wire import PATH, REFUSED_PATH, STREAM_PATH, echoing
from tests.support.worker.worker_process import until

_LIMIT_S = 30.0


class Peer:
    """A client whose protocol is `h2`'s.

    Attributes:
        answers: DATA by stream.
        statuses: Trailers by stream.
        resets: Codes of streams that were reset.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._state.initiate_connection()
        self._numbers = count(1, 2)
        self.answers: dict[int, bytearray] = {}
        self.statuses: dict[int, str] = {}
        self.resets: dict[int, int] = {}
        self.flush()

    def flush(self) -> None:
        self._writer.write(self._state.data_to_send())

    def call(self, path: str = PATH, *more: tuple[str, str]) -> int:
        stream = next(self._numbers)
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "test"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *more,
        ]
        self._state.send_headers(stream, fields)
        self.flush()
        self.answers[stream] = bytearray()
        return stream

    async def send(
        self, stream: int, message: bytes, *, piece: int = 16_384, padding: int | None = None
    ) -> None:
        """Send a message in DATA frames of `piece` bytes, within the windows."""
        left = PREFIX.pack(0, len(message)) + message
        while left:
            room = self._state.local_flow_control_window(stream) - (padding or 0) - 1
            size = min(piece, room, self._state.max_outbound_frame_size - 300)
            if size <= 0:
                await self.turn()
                continue
            self._state.send_data(stream, left[:size], pad_length=padding)
            left = left[size:]
            self.flush()
            await self._writer.drain()

    def end(self, stream: int) -> None:
        self._state.end_stream(stream)
        self.flush()

    def reset(self, stream: int) -> None:
        self._state.reset_stream(stream, 8)
        self.flush()

    async def turn(self) -> None:
        """Take what comes."""
        async with asyncio.timeout(_LIMIT_S):
            received = await self._reader.read(2**16)
        assert received, "the server has closed"
        for event in self._state.receive_data(received):
            if isinstance(event, h2.events.DataReceived):
                self.answers[event.stream_id] += event.data
                self._state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
                found = {key.decode(): value.decode() for key, value in event.headers}
                if "grpc-status" in found:
                    self.statuses[event.stream_id] = found["grpc-status"]
            elif isinstance(event, h2.events.StreamReset):
                self.resets[event.stream_id] = event.error_code
        self.flush()

    async def status(self, stream: int) -> str:
        while stream not in self.statuses:
            await self.turn()
        return self.statuses[stream]

    def messages(self, stream: int) -> list[bytes]:
        data, found = bytes(self.answers[stream]), []
        while data:
            _, size = PREFIX.unpack_from(data)
            found.append(data[5 : 5 + size])
            data = data[5 + size :]
        return found


@asynccontextmanager
async def peer(message_bytes: int = 8 * 2**20) -> AsyncIterator[Peer]:
    async with echoing(Limits(message_bytes=message_bytes)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield Peer(reader, writer)
        finally:
            writer.close()


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 65_535, 300_000, 1_000_000])
@pytest.mark.parametrize("padding", [None, 0, 200])
async def test_messages_of_any_size_come_back_whole(size: int, padding: int | None) -> None:
    message = bytes(index % 251 for index in range(size))
    async with peer() as client:
        stream = client.call()
        await client.send(stream, message, padding=padding)
        client.end(stream)

        assert await client.status(stream) == "0"
        assert client.messages(stream) == [message]


async def test_a_stream_answers_message_by_message() -> None:
    sent = [bytes(size) for size in (0, 5, 40_000, 1, 700_000)]
    async with peer() as client:
        stream = client.call(STREAM_PATH)
        for message in sent:
            await client.send(stream, message)
        client.end(stream)

        assert await client.status(stream) == "0"
        assert client.messages(stream) == sent


async def test_calls_that_are_withdrawn_take_no_answer_and_disturb_none() -> None:
    async with peer() as client:
        for _ in range(20):
            withdrawn = client.call()
            await client.send(withdrawn, b"no")
            client.reset(withdrawn)
        kept = client.call()
        await client.send(kept, b"yes")
        client.end(kept)

        assert await client.status(kept) == "0"
        assert client.messages(kept) == [b"yes"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([("grpc-timeout", "0n")], "4"),
        ([("grpc-timeout", "soon")], "13"),
        ([("x-bin", "not base64!")], "13"),
        ([("grpc-timeout", "99999999H")], "0"),
        ([("x-bin", "AQID")], "0"),
    ],
)
async def test_headers_of_grpc_are_read_or_refused(
    fields: list[tuple[str, str]], status: str
) -> None:
    async with peer() as client:
        stream = client.call(PATH, *fields)
        if status == "0":
            await client.send(stream, b"x")
            client.end(stream)

        assert await client.status(stream) == status


async def test_an_unknown_method_and_a_message_too_large_have_their_status() -> None:
    async with peer(1000) as client:
        unknown, large = client.call("/test.Service/Nothing"), client.call()
        await client.send(large, bytes(2000))

        assert await client.status(unknown) == "12"
        assert await client.status(large) == "8"


actions = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["send", "end", "reset"]), st.integers(0, 30_000)),
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(actions)
def test_whatever_order_calls_take_each_gets_its_own_answer(
    script: list[tuple[int, str, int]],
) -> None:
    """Four interleaved streams that send, end and reset at random; h2 checks every frame."""

    async def played() -> None:
        async with peer() as client:
            streams: dict[int, tuple[int, list[bytes]]] = {}
            for slot, action, size in script:
                stream, sent = streams.setdefault(slot, (client.call(STREAM_PATH), []))
                if action == "send":
                    message = bytes((slot,)) * size
                    await client.send(stream, message, piece=7000)
                    sent.append(message)
                else:
                    del streams[slot]
                    (client.end if action == "end" else client.reset)(stream)
                    if action == "end":
                        assert await client.status(stream) == "0"
                        assert client.messages(stream) == sent
            for stream, sent in streams.values():
                client.end(stream)
                assert await client.status(stream) == "0"
                assert client.messages(stream) == sent

    asyncio.run(played())


async def test_many_calls_that_wait_and_are_withdrawn_together_are_no_flood() -> None:
    """Of grpc's C core, which writes small WINDOW_UPDATEs with each call; as a proxy's clients."""
    limits = Limits(streams=2_000)
    async with (
        echoing(limits) as (echo, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        echo.free.clear()
        call: Any = channel.unary_unary(PATH)
        calls = [call(b"x") for _ in range(1_200)]
        async with asyncio.timeout(_LIMIT_S):
            await until(lambda: echo.running == len(calls) or any(call.done() for call in calls))
        waited = echo.running
        await asyncio.sleep(1.1)  # withdrawn at once, they would be a rapid reset
        neighbour = call(b"neighbour")
        for call in calls:
            call.cancel()
        async with asyncio.timeout(_LIMIT_S):
            await until(lambda: echo.running == 1)
        echo.free.set()
        answer = await neighbour

    assert waited == len(calls)
    assert answer == b"neighbour"


async def test_a_stream_is_refused_once_its_first_message_is_there_or_a_little_later() -> None:
    """A client of grpc.aio that is just sending it would say INTERNAL, not why it was refused."""
    async with peer() as client:
        silent, speaks = client.call(REFUSED_PATH), client.call(REFUSED_PATH)
        await client.send(speaks, b"let me in")

        assert await client.status(speaks) == "7"
        assert silent not in client.statuses
        assert await client.status(silent) == "7"

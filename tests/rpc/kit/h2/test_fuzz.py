"""Conversations that were damaged at random: the server holds its bounds, and never raises.

`make fuzz-transport` runs 200,000 of them; a seed that fails is printed, and runs alone with
CINQUEFOIL_FUZZ_SEED.
"""

import asyncio
import gc
import os
import random
import weakref
from typing import cast

import grpc
import pytest

from services.kit.h2 import frames
from services.kit.h2.connection import Connection
from services.kit.h2.frames import DATA, HEADERS, PREFACE, SETTING, SETTINGS, UINT32, frame
from services.kit.h2.server import Server
from services.kit.h2.server_connection import ServerConnection
from services.kit.h2.server_state import Limits, ServerState
from tests.support.h2_wire import PATH, STREAM_PATH, Echo, block, data, head

COUNT = int(os.environ.get("CINQUEFOIL_FUZZ", "400"))
FIRST = int(os.environ.get("CINQUEFOIL_FUZZ_SEED", "0"))
STREAMS = 8


class Sink(asyncio.Transport):
    """Takes what is written, and counts it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


def conversation(draw: random.Random) -> list[bytes]:
    """Return the pieces of a conversation that means something."""
    pieces = [PREFACE, frame(SETTINGS, 0, 0, SETTING.pack(4, draw.choice((0, 100, 65_535))))]
    stream = 1
    for _ in range(draw.randrange(1, 8)):
        path = draw.choice((PATH, STREAM_PATH, "/no/such"))
        message = bytes(draw.choice((0, 1, 50, 20_000, 70_000)))
        pieces += draw.choice(
            (
                [head(stream, path), data(stream, message)],
                [head(stream, path), data(stream, message, ends=False), data(stream, b"x")],
                [head(stream, path, ("grpc-timeout", b"10m")), data(stream, message)],
                [frame(HEADERS, 0, stream, block(path)), frame(frames.CONTINUATION, 4, stream)],
                [head(stream, path), frame(DATA, 9, stream, b"\x03" + bytes(9))],
                [head(stream, path), frame(frames.RESET, 0, stream, UINT32.pack(8))],
                [frame(frames.PING, 0, 0, bytes(8)), frame(frames.WINDOW, 0, 0, UINT32.pack(99))],
            )
        )
        stream += 2
    return pieces


def damaged(pieces: list[bytes], draw: random.Random) -> bytes:
    """Return the conversation with a few things wrong with it."""
    pieces = list(pieces)
    for _ in range(draw.randrange(4)):
        index = draw.randrange(len(pieces))
        match draw.randrange(5):
            case 0:
                pieces.insert(draw.randrange(len(pieces)), pieces[index])
            case 1:
                del pieces[index]
            case 2:
                other = draw.randrange(len(pieces))
                pieces[index], pieces[other] = pieces[other], pieces[index]
            case _:
                piece = bytearray(pieces[index])
                for _ in range(draw.randrange(1, 4)):
                    piece[draw.randrange(min(len(piece), 80))] ^= 1 << draw.randrange(8)
                pieces[index] = bytes(piece)
        if not pieces:
            return PREFACE
    return b"".join(pieces)


def feed(connection: Connection[object, object], sent: bytes, draw: random.Random) -> None:  # type: ignore[type-var]
    """Hand over bytes as a loop does, in pieces of any size."""
    position = 0
    while position < len(sent):
        room = connection.get_buffer(-1)
        size = min(len(room), len(sent) - position, draw.choice((1, 9, 200, 5000, 10**6)))
        room[:size] = sent[position : position + size]
        connection.buffer_updated(size)
        position += size


def serving_echo() -> tuple[Echo, ServerState]:
    """Return handlers, and the server that they are registered with."""
    echo = Echo()
    server = Server(
        lambda _, handler: handler,
        Limits(
            message_bytes=60_000,
            receiving_bytes=200_000,
            streams=STREAMS,
            calls=100,
            connections=10,
            handshake_s=1.0,
            age_s=600.0,
        ),
    )
    echo.register(cast(grpc.aio.Server, server))
    return echo, server._state


async def test_an_answered_call_is_freed_without_the_garbage_collector() -> None:
    """Large requests must not stay in memory until it runs: 600 MB after 2,000 images."""
    _, state = serving_echo()
    connection = ServerConnection(state)
    connection.connection_made(Sink())
    gc.collect()
    gc.disable()
    try:
        request = head(1, PATH, ("grpc-timeout", b"10S")) + data(1, bytes(50_000))
        feed(connection, PREFACE + frame(SETTINGS, 0, 0) + request[:-1], random.Random(0))  # type: ignore[arg-type]
        call = weakref.ref(connection.streams[1])
        feed(connection, request[-1:], random.Random(0))  # type: ignore[arg-type]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not connection.streams
        assert call() is None
    finally:
        gc.enable()
        connection.connection_lost(None)


@pytest.mark.may_block
async def test_damaged_conversations_leave_nothing_behind() -> None:
    echo, state = serving_echo()
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    for seed in range(FIRST, FIRST + COUNT):
        draw = random.Random(seed)
        connection, sink = ServerConnection(state), Sink()
        connection.connection_made(sink)
        try:
            feed(connection, damaged(conversation(draw), draw), draw)  # type: ignore[arg-type]
            assert len(connection.streams) <= STREAMS
            assert 0 <= state.received.taken <= state.limits.receiving_bytes
            await asyncio.sleep(0)
        except Exception as error:
            error.add_note(f"CINQUEFOIL_FUZZ_SEED={seed}")
            raise
        finally:
            connection.connection_lost(None)
        for _ in range(3):
            await asyncio.sleep(0)
        held = (state.calls, state.received, state.unread, state.untaken, state.connected)
        assert not any(room.taken for room in held), seed
        assert (state.opening, echo.running) == (0, 0), seed
        assert not problems, seed
    assert not state.connections

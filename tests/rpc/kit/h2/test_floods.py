"""Peers that break the protocol, or only make work: they are ended, and others are served.

The floods of CVE-2019-9511 to 9518, CVE-2023-44487 (rapid reset) and CVE-2024-27316 (endless
CONTINUATION) are among them.
"""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from services.kit.h2 import frames
from services.kit.h2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    RESET,
    SETTING,
    SETTINGS,
    UINT32,
    WINDOW,
    frame,
)
from services.kit.h2.hpack import literal
from services.kit.rpc import Limits
from tests.support.h2_wire import STREAM_PATH, Echo, block, data, echoing, head, still_served, wired

MANY = 20_000


def resets() -> Iterator[bytes]:
    """Begin calls and withdraw them at once."""
    for stream in range(1, 2 * MANY, 2):
        yield head(stream) + data(stream, b"x") + frame(RESET, 0, stream, UINT32.pack(8))


def blocks_without_end() -> Iterator[bytes]:
    """A header block that goes on for ever."""
    yield frame(HEADERS, END_STREAM, 1, block())
    for _ in range(MANY):
        yield frame(CONTINUATION, 0, 1, literal("x", b"y"))


def empty_data() -> Iterator[bytes]:
    """A request of nothing, again and again."""
    yield head(1)
    for _ in range(MANY):
        yield frame(DATA, 0, 1)


def small_windows() -> Iterator[bytes]:
    """One more byte of room, again and again."""
    yield head(1)
    for _ in range(MANY):
        yield frame(WINDOW, 0, 1, UINT32.pack(1))


def server_resets() -> Iterator[bytes]:
    """Calls that the server has to reset, one after another (CVE-2025-8671)."""
    for stream in range(1, 2 * MANY, 2):
        yield head(stream) + frame(WINDOW, 0, stream, UINT32.pack(0))


def refused_messages() -> Iterator[bytes]:
    """Requests whose message is announced to be too large, one after another."""
    for stream in range(1, 2 * MANY, 2):
        yield head(stream) + frame(DATA, 0, stream, b"\0\xff\xff\xff\xff")


def repeated(piece: bytes) -> Iterator[bytes]:
    """The same frame, again and again."""
    for _ in range(MANY):
        yield piece


FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "rapid reset": resets,
    "resets by the server": server_resets,
    "messages too large": refused_messages,
    "CONTINUATION": blocks_without_end,
    "empty DATA": empty_data,
    "small WINDOW_UPDATE": small_windows,
    "PING": lambda: repeated(frame(PING, 0, 0, bytes(8))),
    "SETTINGS": lambda: repeated(frame(SETTINGS, 0, 0, SETTING.pack(4, 65_535))),
    "PRIORITY": lambda: repeated(frame(PRIORITY, 0, 1, bytes(5))),
    "unknown frames": lambda: repeated(frame(0x21, 0, 0)),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_ends_its_connection_before_it_is_all_read(flood: str) -> None:
    async with echoing() as (echo, port):
        async with wired(port) as wire:
            for piece in FLOODS[flood]():
                wire.write(piece)
            code = await wire.fault()
        await still_served(port)

    assert code == frames.ENHANCE_YOUR_CALM
    assert echo.running == 0


async def test_streams_that_were_answered_and_end_by_a_reset_are_no_flood() -> None:
    """So Envoy ends its calls to an external processor, many at once where clients leave."""
    streams = range(1, 3_000, 2)
    async with echoing(Limits(streams=2_000)) as (_, port), wired(port) as wire:
        wire.write(*(head(each, STREAM_PATH) + data(each, b"x", ends=False) for each in streams))
        for _ in streams:
            await wire.until(DATA)
        wire.write(*(frame(RESET, 0, each, UINT32.pack(8)) for each in streams))
        wire.write(head(3_001), data(3_001, b"after"))
        answer = await wire.until(DATA, 3_001)

    assert answer.payload[5:] == b"after"


BREACHES = {
    "a window of more than 2^31": (
        frame(WINDOW, 0, 0, UINT32.pack(2**31 - 1)),
        frames.FLOW_CONTROL_ERROR,
    ),
    "WINDOW_UPDATE of 0": (frame(WINDOW, 0, 0, UINT32.pack(0)), frames.PROTOCOL_ERROR),
    "a stream that a server would open": (head(2), frames.PROTOCOL_ERROR),
    "a stream twice": (
        head(3, flags=END_HEADERS | END_STREAM) + head(3),
        frames.STREAM_CLOSED,
    ),
    "DATA of no stream": (data(5, b"x"), frames.PROTOCOL_ERROR),
    "padding larger than its frame": (
        head(1) + frame(DATA, PADDED, 1, b"\xff" + bytes(20)),
        frames.PROTOCOL_ERROR,
    ),
    "padded HEADERS without their padding": (
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\x10"),
        frames.PROTOCOL_ERROR,
    ),
    "a block interrupted": (
        frame(HEADERS, 0, 1, block()) + frame(PING, 0, 0, bytes(8)),
        frames.PROTOCOL_ERROR,
    ),
    "CONTINUATION of nothing": (frame(CONTINUATION, 4, 1, b""), frames.PROTOCOL_ERROR),
    "a damaged block": (frame(HEADERS, END_HEADERS, 1, b"\x80"), frames.COMPRESSION_ERROR),
    "PUSH_PROMISE": (frame(frames.PUSH, 4, 1, bytes(8)), frames.PROTOCOL_ERROR),
    "SETTINGS of 5 bytes": (frame(SETTINGS, 0, 0, bytes(5)), frames.FRAME_SIZE_ERROR),
    "frames of 100 bytes": (
        frame(SETTINGS, 0, 0, SETTING.pack(5, 100)),
        frames.PROTOCOL_ERROR,
    ),
    "PING of 7 bytes": (frame(PING, 0, 0, bytes(7)), frames.FRAME_SIZE_ERROR),
    "a frame of 1 MB other than DATA": (
        frames.HEAD.pack(2**20 << 8 | HEADERS, 4, 1),
        frames.FRAME_SIZE_ERROR,
    ),
    "DATA of 8 MB": (
        head(1) + frames.HEAD.pack(8 * 2**20 << 8 | DATA, 0, 1),
        frames.FRAME_SIZE_ERROR,
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
async def test_a_breach_of_the_protocol_ends_the_connection_with_its_code(breach: str) -> None:
    sent, code = BREACHES[breach]
    async with echoing() as (_, port):
        async with wired(port) as wire:
            wire.write(sent)
            assert await wire.fault() == code
        await still_served(port)


async def test_who_sends_more_than_its_window_is_ended() -> None:
    """A stream's window is 4 MiB; the handler waits, so none of it is given back."""
    limits = Limits(message_bytes=2**20)
    async with echoing(limits) as (echo, port):
        echo.free.clear()
        async with wired(port) as wire:
            wire.write(head(1, "/test.Service/Talk"))
            for _ in range(7):
                wire.write(data(1, bytes(900_000), ends=False))
            code = await wire.fault()
        await still_served_after(echo, port)

    assert code == frames.FLOW_CONTROL_ERROR


async def still_served_after(echo: Echo, port: int) -> None:
    echo.free.set()
    await still_served(port)


@pytest.mark.parametrize("greeting", [b"", b"PRI * HTTP/2.0\r\n", frames.PREFACE])
async def test_who_does_not_greet_is_left(greeting: bytes) -> None:
    """A connection that says nothing, or too little, holds nothing for long."""
    async with (
        echoing(Limits(dead_after_s=2.0)) as (_, port),
        wired(port, greeting=greeting) as wire,
    ):
        while await wire.next() is not None:
            pass
        assert all(each.kind in (SETTINGS, WINDOW) for each in wire.came)


async def test_another_protocol_is_answered_in_its_words() -> None:
    async with echoing() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await still_served(port)

    assert answer.startswith(b"HTTP/1.1 505 ")
    assert b"gRPC over HTTP/2" in answer


async def test_streams_beyond_the_limit_are_refused_and_the_rest_is_answered() -> None:
    async with echoing(Limits(streams=2)) as (echo, port), wired(port) as wire:
        echo.free.clear()
        wire.write(*(head(stream) + data(stream, b"x") for stream in (1, 3, 5)))
        refused = await wire.until(RESET)
        echo.free.set()
        answers = {(await wire.until(DATA)).stream for _ in range(2)}

    assert (refused.stream, UINT32.unpack(refused.payload)[0]) == (5, frames.REFUSED_STREAM)
    assert answers == {1, 3}


async def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    async with echoing(Limits(connections=1)) as (_, port), wired(port) as first:
        first.write(head(1), data(1, b"a"))
        await first.until(DATA)
        async with wired(port) as second:
            assert await second.next() is None


async def test_a_request_that_stands_still_is_ended() -> None:
    """A request that announces a message and sends a little of it ends; its connection stays."""
    limits = Limits(message_bytes=2**20, dead_after_s=2.0)
    async with echoing(limits) as (_, port), wired(port) as wire:
        whole = data(1, bytes(100_000))
        wire.write(head(1), frame(DATA, 0, 1, whole[9:5000]))

        async def stay() -> None:
            while True:
                wire.write(frame(PING, 0, 0, bytes(8)))
                await asyncio.sleep(0.2)

        staying = asyncio.create_task(stay())
        reset = await wire.until(RESET, 1)
        staying.cancel()

    assert UINT32.unpack(reset.payload)[0] == frames.CANCEL


async def test_requests_in_pieces_are_bounded_together_by_what_has_come_of_them() -> None:
    """Announcing much takes no room from others: the first two announce 1 MiB and send 10 kB."""
    limits = Limits(message_bytes=2**20, receiving_bytes=2**20)
    async with echoing(limits) as (_, port), wired(port) as wire:
        piece = data(1, bytes(2**20))[9:]
        for stream, sent in ((1, 10_000), (3, 10_000), (5, 700_000), (7, 700_000)):
            wire.write(head(stream), frame(DATA, 0, stream, piece[:sent]))
        refused = await wire.until(HEADERS)

    assert refused.stream == 7

    assert b"grpc-status\x018" in refused.payload


async def test_answers_that_are_not_read_wait_within_bounds() -> None:
    """A peer that requests large answers and never reads holds some of them, then is ended."""
    limits = Limits(message_bytes=2**20, streams=100, dead_after_s=2.0)
    async with echoing(limits) as (echo, port):
        async with wired(port) as wire:
            wire.write(frame(SETTINGS, 0, 0, SETTING.pack(4, 2**31 - 1)))
            wire.write(frame(WINDOW, 0, 0, UINT32.pack(2**31 - 1 - 65_535)))
            transport = wire.writer.transport
            assert isinstance(transport, asyncio.Transport)
            transport.pause_reading()
            for stream in range(1, 61, 2):
                wire.write(head(stream), data(stream, bytes(10**6)))
            while not transport.is_closing():
                wire.write(frame(PING, 0, 0, bytes(8)))
                await asyncio.sleep(0.1)
        await still_served(port)

    assert echo.running == 0

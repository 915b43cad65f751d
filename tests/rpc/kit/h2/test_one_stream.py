"""Faults of one call end that call: the others of its connection, a proxy's users, go on."""

from typing import Any

import grpc
import pytest

from services.kit.h2 import frames
from services.kit.h2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PRIORITIZED,
    PRIORITY,
    RESET,
    SETTING,
    SETTINGS,
    UINT32,
    WINDOW,
    frame,
)
from services.kit.h2.hpack import literal, literals
from services.kit.rpc import Limits, serving
from tests.support.h2_wire import PATH, STREAM_PATH, Wire, block, data, echoing, head, wired

USUAL = (
    (":method", b"POST"),
    (":scheme", b"http"),
    (":path", PATH.encode()),
    ("content-type", b"application/grpc"),
)
LARGE = b"".join(literal(f"x-{number}", bytes(b"y" * 1000)) for number in range(100))


def opened(*fields: tuple[str, bytes]) -> bytes:
    """Return HEADERS with these fields alone, on stream 3."""
    return frame(HEADERS, END_HEADERS, 3, literals(fields))


def with_usual(*fields: tuple[str, bytes]) -> bytes:
    """Return HEADERS of a call with more fields, on stream 3."""
    return opened(*USUAL, *fields)


MISCONDUCT = {
    "an unknown pseudo-header": opened((":colour", b"red"), *USUAL),
    "a response's pseudo-header": opened((":status", b"200"), *USUAL),
    "a path twice": opened((":path", b"/other"), *USUAL),
    "a pseudo-header after others": opened(*USUAL[:2], *reversed(USUAL[2:])),
    "no path": opened(*USUAL[:2], USUAL[3]),
    "an empty path": opened(*USUAL[:2], (":path", b""), USUAL[3]),
    "no scheme": opened(USUAL[0], *USUAL[2:]),
    "a header of connections": with_usual(("connection", b"close")),
    "te of something": with_usual(("te", b"gzip")),
    "capitals": with_usual(("Big", b"x")),
    "a space in a name": with_usual(("a b", b"x")),
    "a line's end in a value": with_usual(("a", b"x\r\nb: y")),
    "a NUL in a value": with_usual(("a", b"x\0")),
    "a length that is none": with_usual(("content-length", b"-5")),
    "two lengths": with_usual(("content-length", b"6"), ("content-length", b"7")),
    "a length too short": with_usual(("content-length", b"3")) + data(3, b"x"),
    "a length too long": with_usual(("content-length", b"30")) + data(3, b"x"),
    "trailers with a path": head(3) + head(3, flags=END_HEADERS | END_STREAM),
    "headers within a request": head(3) + frame(HEADERS, END_HEADERS, 3, literal("a", b"b")),
    "dependence on itself": frame(
        HEADERS, END_HEADERS | PRIORITIZED, 3, UINT32.pack(3) + b"\0" + block()
    ),
    "priority by itself": head(3) + frame(PRIORITY, 0, 3, UINT32.pack(3) + b"\0"),
    "WINDOW_UPDATE of 0": head(3) + frame(WINDOW, 0, 3, UINT32.pack(0)),
}
LATE = {
    "a second request": head(3) + data(3, b"x") + data(3, b"y"),
    "DATA after the end of a stream": head(3, STREAM_PATH) + data(3, b"x") + data(3, b"y"),
    "DATA after a reset": head(3) + frame(RESET, 0, 3, UINT32.pack(8)) + data(3, b"x"),
}


async def answered(wire: Wire, stream: int) -> None:
    """Send the message of a call that waits for it; its answer comes."""
    wire.write(data(stream, b"mine"))
    answer = await wire.until(DATA, stream)
    assert answer.payload[5:] == b"mine"


@pytest.mark.parametrize("misconduct", [*MISCONDUCT, *LATE])
async def test_what_is_wrong_with_a_call_resets_it_alone(misconduct: str) -> None:
    """Another call, open on the same connection meanwhile, is answered."""
    code = frames.STREAM_CLOSED if misconduct in LATE else frames.PROTOCOL_ERROR
    async with echoing() as (echo, port), wired(port) as wire:
        echo.free.clear()
        wire.write(head(1), (MISCONDUCT | LATE)[misconduct])
        reset = await wire.until(RESET, 3)
        echo.free.set()
        await answered(wire, 1)

    assert UINT32.unpack(reset.payload)[0] == code


async def test_a_window_beyond_its_end_resets_its_stream_alone() -> None:
    """WINDOW_UPDATEs of one call add up to more than 2^31."""
    async with echoing() as (_, port), wired(port) as wire:
        wire.write(head(1), head(3), frame(WINDOW, 0, 3, UINT32.pack(2**31 - 1)))
        reset = await wire.until(RESET, 3)
        await answered(wire, 1)

    assert UINT32.unpack(reset.payload)[0] == frames.FLOW_CONTROL_ERROR


@pytest.mark.parametrize("pieces", [1, 8])
async def test_metadata_of_100_kb_are_refused_on_their_stream(pieces: int) -> None:
    """In one frame, or in several: RESOURCE_EXHAUSTED, or 431 for another content type."""
    whole = block() + LARGE
    size = -(-len(whole) // pieces)
    parts = [whole[start : start + size] for start in range(0, len(whole), size)]
    async with echoing() as (_, port), wired(port) as wire:
        wire.write(head(1))
        for number, part in enumerate(parts):
            last = END_HEADERS if number == len(parts) - 1 else 0
            wire.write(frame(CONTINUATION if number else HEADERS, last, 3, part))
        plain = literals((*USUAL[:3], ("content-type", b"text/plain"))) + LARGE
        wire.write(frame(HEADERS, END_HEADERS, 5, plain))
        refused, other = await wire.until(HEADERS, 3), await wire.until(HEADERS, 5)
        await answered(wire, 1)

    assert b"grpc-status\x018" in refused.payload
    assert b":status\x03431" in other.payload


async def test_entries_of_metadata_that_were_discarded_can_be_named_later() -> None:
    """The table stays as the client has it: its last entry is the next call's path."""
    entry = b"\x44" + bytes((len(STREAM_PATH),)) + STREAM_PATH.encode()
    async with echoing() as (_, port), wired(port) as wire:
        wire.write(frame(HEADERS, END_HEADERS, 1, block() + LARGE + entry))
        wire.write(
            frame(
                HEADERS,
                END_HEADERS,
                3,
                b"\x83\x86\xbe" + literal("content-type", b"application/grpc"),
            )
        )
        await answered(wire, 3)


async def test_metadata_within_the_limit_after_a_call_beyond_it() -> None:
    """grpc.aio's calls share a connection: one with 40 kB fails alone."""
    async with echoing() as (_, port), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(PATH)
        assert await call(b"one") == b"one"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"two", metadata=[("x", "y" * 40_000)])
        assert await call(b"three") == b"three"

    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_what_is_no_call_of_grpc_is_answered_within_the_windows() -> None:
    """405 and 415, a byte at a time, where the window is 1; application/grpcfoo is no gRPC."""
    async with echoing() as (_, port), wired(port) as wire:
        wire.write(frame(SETTINGS, 0, 0, SETTING.pack(4, 1)))
        get = literals(((":method", b"GET"), *USUAL[1:]))
        foo = literals((*USUAL[:3], ("content-type", b"application/grpcfoo")))
        wire.write(frame(HEADERS, 5, 1, get), frame(HEADERS, 5, 3, foo))
        statuses = [(await wire.until(HEADERS, stream)).payload for stream in (1, 3)]
        wire.write(*(frame(WINDOW, 0, stream, UINT32.pack(99)) for stream in (1, 3)))
        while (await wire.until(DATA)).flags != END_STREAM:
            pass
        first = next(each for each in wire.came if each.kind == DATA)

    assert b"405" in statuses[0]
    assert b"415" in statuses[1]
    assert len(first.payload) == 1


async def test_the_reserved_bit_of_a_stream_is_ignored() -> None:
    """RFC 9113, 4.1: it must be ignored when received."""
    async with echoing() as (_, port), wired(port) as wire:
        message = data(1, b"x")
        wire.write(head(1), message[:5], bytes((message[5] | 0x80,)), message[6:])
        assert (await wire.until(DATA)).payload[5:] == b"x"


async def test_calls_that_end_with_a_reset_after_their_answers_are_no_attack() -> None:
    """Envoy ends every call of ext_proc so: 3,000 on a connection, in no time."""
    async with echoing(Limits(streams=1_000)) as (_, port), wired(port) as wire:
        for stream in range(1, 6_001, 2):
            wire.write(head(stream, STREAM_PATH), data(stream, b"x", ends=False))
            if stream % 200 == 199:
                for each in range(stream - 198, stream + 1, 2):
                    await wire.until(DATA, each)
                    wire.write(frame(RESET, 0, each, UINT32.pack(8)))
        wire.write(head(6_001), data(6_001, b"last"))
        assert (await wire.until(DATA, 6_001)).payload[5:] == b"last"


async def test_a_long_sentence_of_an_error_is_cut_and_its_status_stays() -> None:
    """30,000 characters that are written as three each, and metadata that would not fit."""

    async def fail(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "\u00e4" * 30_000, (("a", "b" * 20_000),))

    def register(server: grpc.aio.Server) -> None:
        handlers: Any = {"Fail": grpc.unary_unary_rpc_method_handler(fail)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.S", handlers),))

    async with (
        serving("127.0.0.1:0", register, (), transport="own", grace_s=0.1) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        call: Any = channel.unary_unary("/t.S/Fail")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")

    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert 600 < len(caught.value.details() or "") <= 4096

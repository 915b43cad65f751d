"""Frames that leave together: a system call wakes the peer, and costs more than a small answer."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import grpc
import pytest

from services.kit.h2 import turns as turns_module
from services.kit.h2.connection import CONNECTION_WINDOW
from services.kit.h2.frames import (
    DATA,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    GOAWAY,
    HEAD,
    HEADERS,
    NO_ERROR,
    PREFACE,
    RESET,
    SETTINGS,
    UINT32,
    WINDOW,
    frame,
)
from services.kit.h2.messages import PREFIX
from services.kit.h2.sending import STREAM_WINDOW
from services.kit.h2.server_connection import ServerConnection
from services.kit.h2.server_state import Limits, ServerState
from tests.support.h2_wire import Echo, data, head

ECHO: Any = grpc.unary_unary_rpc_method_handler(Echo().echo)


@pytest.fixture(autouse=True)
def _no_turn_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """All frames are read at once: on a busy machine a turn may end after any of them."""
    monkeypatch.setattr(turns_module, "_SLICE_S", math.inf)
    monkeypatch.setattr(turns_module, "_TURN_S", math.inf)


class Written:
    """A transport that keeps what is written to it, by system call."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def set_write_buffer_limits(self, high: int) -> None:
        """There is none."""

    def get_extra_info(self, _: str) -> None:
        """It has no peer."""

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    def resume_reading(self) -> None:
        """Nothing comes by itself."""

    def is_closing(self) -> bool:
        return False


def came(calls: list[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """The frames that were written: kind, stream, payload."""
    data = b"".join(calls)
    while data:
        word, _, number = HEAD.unpack_from(data)
        end = HEAD.size + (word >> 8)
        yield word & 0xFF, number, data[HEAD.size : end]
        data = data[end:]


def received(connection: ServerConnection, sent: bytes) -> None:
    """Pass bytes to a connection, as its transport does."""
    connection.get_buffer(-1)[: len(sent)] = sent
    connection.buffer_updated(len(sent))


@contextmanager
def connected(handler: Any, *, message_bytes: int) -> Iterator[tuple[ServerConnection, Written]]:
    """A connection that has greeted, and what it writes from now on."""
    state = ServerState(
        lambda _: handler,
        Limits(
            message_bytes,
            receiving_bytes=100 * message_bytes,
            streams=100,
            calls=100,
            connections=1,
            dead_after_s=60.0,
            idle_s=60.0,
            age_s=60.0,
        ),
    )
    connection, written = ServerConnection(state), Written()
    connection.connection_made(cast(asyncio.Transport, written))
    try:
        received(connection, PREFACE + frame(SETTINGS, 0, 0))
        written.calls.clear()
        yield connection, written
    finally:
        connection.connection_lost(None)


async def turns() -> None:
    """Run the loop's pending handlers."""
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.mark.parametrize("requests", [1, 2, 20])
async def test_all_that_one_turn_answers_leaves_in_one_call(requests: int) -> None:
    with connected(ECHO, message_bytes=1000) as (connection, written):
        sent = (head(n) + data(n, b"%d" % n) for n in range(1, 2 * requests, 2))
        received(connection, b"".join(sent))
        await turns()

    assert len(written.calls) == 1
    assert written.calls[0].count(b"grpc-status") == requests


@pytest.mark.parametrize("seed", range(3))
async def test_messages_whose_frames_come_by_turns_are_whole_and_their_windows_given_back(
    seed: int,
) -> None:
    """Frames of any size of twenty messages in any order, in reads of any size."""
    draw = random.Random(seed)
    messages = {n: draw.randbytes(draw.randrange(600_000)) for n in range(1, 41, 2)}
    heard: list[bytes] = []

    async def keep(message: bytes, _: object) -> bytes:
        heard.append(bytes(message))
        return b""

    with connected(grpc.unary_unary_rpc_method_handler(keep), message_bytes=600_000) as (
        connection,
        written,
    ):
        left = {n: PREFIX.pack(0, len(message)) + message for n, message in messages.items()}
        total = sum(map(len, left.values()))
        sent = bytearray(b"".join(map(head, left)))
        while left:
            number = draw.choice(list(left))
            size = draw.choice((7, 300, 16_384, 16_384, 16_384))
            piece, left[number] = left[number][:size], left[number][size:]
            sent += frame(DATA, 0 if left[number] else END_STREAM, number, piece)
            if not left[number]:
                del left[number]
        while sent:
            size = draw.randrange(1, 100_000)
            received(connection, bytes(sent[:size]))
            del sent[:size]
        await turns()

    widened = sum(
        UINT32.unpack(more)[0]
        for kind, of, more in came(written.calls)
        if (kind, of) == (WINDOW, 0)
    )
    assert sorted(heard) == sorted(messages.values())
    assert total - CONNECTION_WINDOW // 4 <= widened <= total


async def test_frames_that_come_by_turns_may_not_exceed_the_window_of_theirs() -> None:
    """Of two messages that are never given room again, one sends a window's worth of frames."""
    with connected(ECHO, message_bytes=2 * STREAM_WINDOW) as (connection, written):
        connection.consume = lambda *_: None  # type: ignore[method-assign]
        begins = PREFIX.pack(0, 2 * STREAM_WINDOW)
        for number in (1, 3):
            received(connection, head(number) + frame(DATA, 0, number, begins))
        by_turns = frame(DATA, 0, 1, bytes(10)) + frame(DATA, 0, 3, bytes(2**14))
        for _ in range(STREAM_WINDOW // 2**14 - 1):
            received(connection, by_turns)
        await turns()
        assert not written.calls
        received(connection, by_turns)
        await turns()

    (kind, _, payload), *_ = came(written.calls)
    assert kind == GOAWAY
    assert UINT32.unpack_from(payload, 4) == (FLOW_CONTROL_ERROR,)


@pytest.mark.parametrize("ends", [True, False])
async def test_an_answer_before_the_requests_end_is_followed_by_a_reset_without_error(
    *, ends: bool
) -> None:
    """Without it grpc's C core, short of processor time, takes a closed connection for the end."""

    async def first(requests: AsyncIterator[bytes], _: object) -> bytes:
        if not ends:
            return await anext(requests)
        *_, last = [each async for each in requests]
        return last

    with connected(grpc.stream_unary_rpc_method_handler(first), message_bytes=10) as (
        connection,
        written,
    ):
        received(connection, head(1) + data(1, b"one", ends=ends))
        await turns()

    found = [(kind, payload) for kind, number, payload in came(written.calls) if number == 1]
    assert found[2][0] == HEADERS
    assert found[3:] == ([] if ends else [(RESET, UINT32.pack(NO_ERROR))])


@pytest.mark.parametrize(
    "handler", [grpc.stream_unary_rpc_method_handler, grpc.unary_unary_rpc_method_handler]
)
async def test_a_request_that_is_refused_is_reset_once(handler: Callable[[Any], Any]) -> None:
    async def never(*_: object) -> bytes:
        await asyncio.Event().wait()
        return b""

    with connected(handler(never), message_bytes=10) as (connection, written):
        received(connection, head(1) + data(1, b"too large for it", ends=False))
        await turns()

    kinds = [kind for kind, number, _ in came(written.calls) if number == 1]
    assert kinds == [HEADERS, RESET]

"""Connections take turns at the event loop: none of them, nor any number, makes others wait."""

import asyncio
import time
from collections import Counter
from typing import cast

import grpc
import pytest

from services.kit.h2 import Server
from services.kit.h2.admission import UNKNOWN, Payer
from services.kit.h2.frames import HEADERS, PREFACE, SETTINGS, UINT32, WINDOW, frame
from services.kit.h2.server_connection import ServerConnection
from services.kit.h2.server_state import ServerState
from services.kit.h2.turns import Turns
from services.kit.rpc import Limits
from tests.rpc.kit.h2.test_fuzz import Sink
from tests.support.h2_wire import Echo, block, data, head

MANY = 60
LONGEST_TURN_S = 0.1
"""Processor time; a machine that is busy takes three times as long."""

HELLO = PREFACE + frame(SETTINGS, 0, 0)
# Heads of 13 KiB in 500 bytes each: 400 fields, by reference to the table.
HEADS = frame(HEADERS, 5, 1, block() + b"\x40\x01a\x01v") + b"".join(
    frame(HEADERS, 5, stream, block() + b"\x00\x01b\x04%04x" % stream + b"\xbe" * 400)
    for stream in range(3, 401, 2)
)
WINDOWS = frame(WINDOW, 0, 0, UINT32.pack(9)) * 10_000


class Answers(Sink):
    """Counts what is written, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)


def server() -> ServerState:
    """Return a server that knows none of its callers."""
    served = Server(
        lambda _, handler: handler, Limits(), admit=lambda *_: Payer("stranger", UNKNOWN)
    )
    Echo().register(cast(grpc.aio.Server, served))
    return served._state


def connected(state: ServerState, sink: Sink) -> ServerConnection:
    connection = ServerConnection(state)
    connection.connection_made(sink)
    return connection


def feed(connection: ServerConnection, sent: bytes) -> None:
    """Hand over bytes as one read."""
    connection.get_buffer(-1)[: len(sent)] = sent
    connection.buffer_updated(len(sent))


@pytest.mark.parametrize("sent", [HEADS, WINDOWS], ids=["heads", "windows"])
async def test_a_turn_of_the_loop_is_short_whatever_many_connections_send(sent: bytes) -> None:
    """60 connections of a stranger, with what costs most: one call of another is answered soon."""
    state = server()
    flooding = [connected(state, Sink()) for _ in range(MANY)]
    began_s = time.process_time()
    for each in flooding:
        feed(each, HELLO + sent[: 200 * 1024])
    turns_s = [time.process_time() - began_s]

    sink = Answers()
    feed(connected(state, sink), HELLO + head(1) + data(1, b"hello"))
    while b"hello" not in sink.data:
        began_s = time.process_time()
        await asyncio.sleep(0)
        turns_s.append(time.process_time() - began_s)

    assert max(turns_s[1:]) < LONGEST_TURN_S / 3
    assert turns_s[0] < LONGEST_TURN_S * 3, "all of them became readable in one turn"
    assert len(turns_s) < 10
    assert any(each._left for each in flooding), "the flood goes on"


async def test_callers_have_turns_one_after_another_and_each_connection_goes_on() -> None:
    """One caller has thirty connections that wait, another one: it is the second."""
    turns, order = Turns(), list[str]()
    for number in range(30):
        turns.wait("many", lambda number=number: order.append(f"many {number}"))  # type: ignore[misc]
    turns.wait("one", lambda: order.append("one"))
    for _ in range(3):
        await asyncio.sleep(0)

    assert order[:3] == ["many 0", "one", "many 1"]
    assert len(Counter(order)) == 31


async def test_what_all_have_taken_leaves_the_rest_to_the_next_turn() -> None:
    """Two connections that take 3 ms each are a turn; the third waits for the next."""
    turns, order = Turns(), list[int]()

    def go_on(number: int) -> None:
        order.append(number)
        turns.spend(0.003, 0)

    for number in range(3):
        turns.wait("caller", lambda number=number: go_on(number))  # type: ignore[misc]
    await asyncio.sleep(0)
    first = list(order)
    await asyncio.sleep(0)

    assert (first, order) == ([0, 1], [0, 1, 2])


async def test_a_connection_that_fails_in_its_turn_keeps_no_other_from_theirs() -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    turns, went = Turns(), list[int]()
    turns.wait("caller", lambda: 1 // 0)  # type: ignore[arg-type]
    turns.wait("caller", lambda: went.append(1))
    for _ in range(3):
        await asyncio.sleep(0)

    assert (went, len(problems)) == ([1], 1)

"""What leaves together: a system call wakes the peer, and costs more than a small answer."""

import asyncio
from typing import Any, cast

import grpc
import pytest

from services.kit.h2.frames import PREFACE, SETTINGS, frame
from services.kit.h2.server_connection import ServerConnection, ServerState
from tests.support.h2_wire import Echo, data, head


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

    def is_closing(self) -> bool:
        return False


def received(connection: ServerConnection, sent: bytes) -> None:
    """Have a connection read bytes."""
    connection.get_buffer(-1)[: len(sent)] = sent
    connection.buffer_updated(len(sent))


@pytest.mark.parametrize("requests", [1, 2, 20])
async def test_all_that_one_turn_answers_leaves_in_one_call(requests: int) -> None:
    handler: Any = grpc.unary_unary_rpc_method_handler(Echo().echo)
    state = ServerState(
        lambda _: handler,
        message_bytes=1000,
        receiving_bytes=1000,
        streams=100,
        calls=100,
        most_connections=1,
        dead_after_s=60.0,
        idle_s=60.0,
        age_s=60.0,
    )
    connection, written = ServerConnection(state), Written()
    connection.connection_made(cast(asyncio.Transport, written))
    try:
        received(connection, PREFACE + frame(SETTINGS, 0, 0))
        written.calls.clear()
        sent = (head(n) + data(n, b"%d" % n) for n in range(1, 2 * requests, 2))
        received(connection, b"".join(sent))
        for _ in range(4):  # turns of the loop
            await asyncio.sleep(0)
    finally:
        connection.connection_lost(None)

    assert len(written.calls) == 1
    assert written.calls[0].count(b"grpc-status") == requests

"""The event loop of a service takes in all of gRPC's wake-ups at once, and loses none."""

import asyncio
import socket
from collections.abc import Iterator

import grpc
import pytest

from services.kit.process import event_loop

_CALLS = 300


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


class PollerCompletionQueue:
    """Reads as grpc.aio's does: one byte a turn."""

    def __init__(self, ours: socket.socket) -> None:
        self.turns = 0
        self._ours = ours

    def _handle_events(self) -> None:
        self.turns += 1
        self._ours.recv(1)


class Other(PollerCompletionQueue):
    """Somebody else's reader, whose bytes mean something."""

    def _handle_events(self) -> None:
        super()._handle_events()


async def _turns(reader: PollerCompletionQueue, ours: socket.socket) -> int:
    running = asyncio.get_running_loop()
    running.add_reader(ours, reader._handle_events)
    await asyncio.sleep(0.05)
    running.remove_reader(ours)
    return reader.turns


@pytest.mark.parametrize(
    ("reader", "wake_ups", "turns"),
    [(PollerCompletionQueue, 7, 1), (PollerCompletionQueue, 3, 3), (Other, 7, 7)],
)
def test_many_wake_ups_of_grpc_are_one_turn_and_others_bytes_are_their_own(
    pair: tuple[socket.socket, socket.socket],
    reader: type[PollerCompletionQueue],
    wake_ups: int,
    turns: int,
) -> None:
    ours, theirs = pair
    theirs.send(b"1" * wake_ups)

    with asyncio.Runner(loop_factory=event_loop.Loop) as runner:
        assert runner.run(_turns(reader(ours), ours)) == turns

    with pytest.raises(BlockingIOError):
        ours.recv(1)


async def _echo(request: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    await asyncio.sleep(0)
    return request


async def _answers() -> list[bytes]:
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Echo": grpc.unary_unary_rpc_method_handler(_echo)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Loop", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/test.Loop/Echo"
        )
        found = await asyncio.gather(*(call(b"%d" % n) for n in range(_CALLS)))
    await server.stop(None)
    return list(found)


def test_grpcs_own_reader_is_known_and_every_call_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A grpc release that names its reader otherwise costs speed, and shows here."""
    wakes = 0
    read = event_loop._after_all_but_one

    def counted(*args: object) -> None:
        nonlocal wakes
        wakes += 1
        read(*args)  # type: ignore[arg-type]  # passed on as they come

    monkeypatch.setattr(event_loop, "_after_all_but_one", counted)

    with asyncio.Runner(loop_factory=event_loop.Loop) as runner:
        assert runner.run(_answers()) == [b"%d" % n for n in range(_CALLS)]

    assert wakes > 0

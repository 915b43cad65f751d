"""Callers cost nothing before they are known, and none alone takes what others need."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from services.kit import peer
from services.kit.h2 import frames, server_connection
from services.kit.h2.admission import KNOWN, OPERATOR, UNKNOWN, Payer, Refused, Room
from services.kit.h2.frames import DATA, HEADERS, PING, RESET, SETTING, SETTINGS, UINT32, frame
from services.kit.h2.messages import PREFIX, compress
from services.kit.rpc import Access, Limits, serving
from services.kit.rpc.access import Token
from tests.support.h2_wire import (
    PATH,
    REFUSED_PATH,
    STREAM_PATH,
    Wire,
    admitting,
    data,
    echoing,
    head,
    still_served,
    wired,
)
from tests.support.worker.worker_process import until

INFER = "/inference.GRPCInferenceService/ModelInfer"
WATCH = "/grpc.health.v1.Health/Watch"
CHECK = "/grpc.health.v1.Health/Check"


def by_name(method: str, context: Any) -> Payer:
    """Admit every caller but "mallory"; the metadata `who` is the identity."""
    who = dict(context.invocation_metadata()).get("who", "")
    if who == "mallory":
        raise Refused(7, "not you")
    return Payer(who, OPERATOR if who == "ops" else KNOWN if who else UNKNOWN)


def called(stream: int, who: str, path: str = PATH, message: bytes = b"x") -> bytes:
    """Return a whole call of somebody."""
    return head(stream, path, ("who", who.encode())) + data(stream, message)


async def status(wire: Wire, stream: int) -> int:
    """Return the status that a call was answered with."""
    while True:
        found = await wire.until(HEADERS, stream)
        _, key, value = found.payload.partition(b"grpc-status")
        if key:
            return int(value[1 : 1 + value[0]])


async def test_heads_without_messages_take_no_place_from_calls() -> None:
    """4 places and 4,000 calls that never send their message: another's call is answered."""
    limits = Limits(calls=4, opening=64, streams=2_000)
    async with echoing(limits) as (_, port), AsyncExitStack() as stack:
        for _ in range(2):
            wire = await stack.enter_async_context(wired(port))
            wire.write(*(head(stream) for stream in range(1, 4_000, 2)))
            assert await status(wire, 3_999) == 8, "no room for so many heads"
        await still_served(port)


async def test_calls_that_wait_for_their_message_hold_little_metadata() -> None:
    """Of 64 places a call with 12 kB takes twelve: 6 are open, and those of few bytes go on."""
    async with echoing(Limits(opening=64)) as (_, port), wired(port) as wire:
        wire.write(*(head(stream, PATH, ("x", b"y" * 12_000)) for stream in range(1, 101, 2)))
        refused = [(await wire.until(HEADERS)).stream for _ in range(44)]
        await still_served(port)

    assert refused == list(range(13, 101, 2))


async def test_a_call_whose_message_does_not_come_ends_by_its_deadline_or_after_3_s() -> None:
    """The deadline counts from HEADERS; a stream of requests may be silent for longer."""
    async with echoing() as (_, port), wired(port) as wire:
        wire.write(head(1), head(3, PATH, ("grpc-timeout", b"200m")), head(5, STREAM_PATH))
        ended = [(await wire.until(HEADERS)).stream for _ in range(2)]
        wire.write(data(5, b"late"))
        answer = await wire.until(DATA)

    assert ended == [3, 1]
    assert (answer.stream, answer.payload[5:]) == (5, b"late")
    assert b"grpc-status\x014" in next(each for each in wire.came if each.stream == 3).payload


async def test_a_request_that_drips_is_ended() -> None:
    """A message that has begun and comes by a byte a time moves, and is still too slow."""
    async with echoing(Limits(dead_after_s=2.0)) as (_, port), wired(port) as wire:
        whole = data(1, bytes(100_000))[9:]
        wire.write(head(1), frame(DATA, 0, 1, whole[:1000]))

        async def drip() -> None:
            while True:
                await asyncio.sleep(0.1)
                wire.write(frame(DATA, 0, 1, bytes(5)))

        dripping = asyncio.create_task(drip())
        reset = await wire.until(RESET, 1)
        dripping.cancel()

    assert UINT32.unpack(reset.payload)[0] == frames.CANCEL


async def test_who_is_refused_hears_it_before_a_message_was_sent_and_takes_no_place() -> None:
    """Of one place, a thousand refused calls take none; a stream waits for a first request."""
    async with admitting(Limits(calls=2, streams=2_000), by_name) as (echo, port):
        async with wired(port) as wire:
            wire.write(
                *(head(stream, PATH, ("who", b"mallory")) for stream in range(1, 1_001, 2)),
                *(head(stream, REFUSED_PATH, ("who", b"mallory")) for stream in (1_001, 1_003)),
            )
            wire.write(data(1_003, b"let me in", ends=False))
            assert await status(wire, 999) == 7
            assert await status(wire, 1_003) == 7
            async with wired(port) as other:
                other.write(called(1, "alice"))
                assert await status(other, 1) == 0
            assert await status(wire, 1_001) == 7
        assert echo.running == 0


async def test_one_caller_takes_half_and_operators_have_a_reserve() -> None:
    """8 places: alice has 4, others the next 3, and the last is an operator's."""
    async with admitting(Limits(calls=8), by_name) as (echo, port), wired(port) as wire:
        echo.free.clear()
        callers = ["alice"] * 6 + ["bob", "carl", "dora", "eve", "ops", "ops"]
        for stream, who in enumerate(callers):
            wire.write(called(2 * stream + 1, who))
        refused = sorted([(await wire.until(HEADERS)).stream for _ in range(4)])
        echo.free.set()

    assert [callers[stream // 2] for stream in refused] == ["alice", "alice", "eve", "ops"]


async def test_connections_without_an_identity_leave_half_to_others() -> None:
    """Of 4 connections the third of a host is closed at once."""
    async with admitting(Limits(connections=4), by_name) as (_, port), AsyncExitStack() as stack:
        for _ in range(2):
            wire = await stack.enter_async_context(wired(port))
            wire.write(called(1, ""))
            assert await status(wire, 1) == 0
        third = await stack.enter_async_context(wired(port))
        assert await third.next() is None


async def test_answers_that_find_no_window_are_bounded_in_bytes_and_time() -> None:
    """Ten answers of 300 kB and no window: some wait, the rest is refused; all end in seconds."""
    limits = Limits(receiving_bytes=2**21, dead_after_s=2.0)
    async with echoing(limits) as (echo, port), wired(port) as wire:
        wire.write(frame(SETTINGS, 0, 0, SETTING.pack(4, 0)))
        for stream in range(1, 21, 2):
            wire.write(head(stream), data(stream, bytes(300_000)))

        async def stay() -> None:
            while True:
                wire.write(frame(PING, 0, 0, bytes(8)))
                await asyncio.sleep(0.2)

        staying = asyncio.create_task(stay())
        resets = 0
        while resets < 6:
            await wire.until(RESET)
            resets += 1
        staying.cancel()
        refused = [each for each in wire.came if b"grpc-status\x018" in each.payload]
        assert echo.running == 0

    assert len(refused) == 4


async def test_answers_that_are_not_taken_wait_in_little_memory() -> None:
    """Of 60 MB of answers to a caller without a window 32 MiB wait; the rest is refused."""
    async with echoing() as (_, port), wired(port) as wire:
        wire.write(frame(SETTINGS, 0, 0, SETTING.pack(4, 0)))
        for stream in range(1, 401, 2):
            wire.write(head(stream), data(stream, bytes(300_000)))
        for _ in range(200 - 2**25 // 300_000):
            found = await wire.until(HEADERS)
            while b"grpc-status" not in found.payload:
                found = await wire.until(HEADERS)
            assert b"grpc-status\x018" in found.payload


async def test_who_takes_an_answer_has_room_although_another_does_not() -> None:
    """Answers that were not taken for a second give way to one that is."""
    size, limits = 600_000, Limits(receiving_bytes=2**21)
    async with echoing(limits) as (_, port), wired(port) as lazy, wired(port) as wire:
        lazy.write(frame(SETTINGS, 0, 0, SETTING.pack(4, 0)))
        for stream in (1, 3, 5):
            lazy.write(head(stream), data(stream, bytes(size)))
            await lazy.until(HEADERS, stream)
        await asyncio.sleep(1.1)
        wire.write(head(1), data(1, bytes(size)))
        came = 0
        while came < size:
            found = await wire.next()
            assert found is not None
            assert b"grpc-status" not in found.payload
            if found.kind == DATA:
                came += len(found.payload)
                more = UINT32.pack(len(found.payload) or 1)
                wire.write(frame(frames.WINDOW, 0, 0, more), frame(frames.WINDOW, 0, 1, more))
        assert b"grpc-status\x018" in (await lazy.until(HEADERS)).payload


@pytest.mark.parametrize(("host", "left"), [("10.0.0.{}", True), ("127.0.0.{}", False)])
async def test_one_host_does_not_take_all_where_no_identities_are_checked(
    monkeypatch: pytest.MonkeyPatch, host: str, left: bool
) -> None:
    """The third of 4 connections of a host is closed, of this machine it is not."""
    hosts = iter((1, 1, 1, 2))
    monkeypatch.setattr(peer, "address", lambda _: f"ipv4:{host.format(next(hosts))}:50000")
    async with echoing(Limits(connections=4)) as (_, port), AsyncExitStack() as stack:
        for number in range(4):
            wire = await stack.enter_async_context(wired(port))
            wire.write(head(1), data(1, b"x"))
            if left and number == 2:
                assert await wire.next() is None
            else:
                await wire.until(DATA)


def zipped(message: bytes, stream: int = 1, *, ends: bool = True) -> bytes:
    """Return the DATA of a message that gzip made small."""
    packed = compress(message, "gzip")
    return frame(DATA, int(ends), stream, PREFIX.pack(1, len(packed)) + packed)


async def test_decompressed_bytes_are_bounded_together_until_their_calls_end() -> None:
    """Of 40 requests that grow from some kB to 1 MiB each, 4 MiB have room for some."""
    message = b"".join(bytes((each % 251,)) * 40 for each in range(25_000))
    limits = Limits(receiving_bytes=4 * 2**20, message_bytes=2**20)
    gzip = ("grpc-encoding", b"gzip")
    async with echoing(limits) as (echo, port), wired(port) as wire:
        echo.free.clear()
        wire.write(frame(SETTINGS, 0, 0, SETTING.pack(4, 2**30)))
        wire.write(frame(frames.WINDOW, 0, 0, UINT32.pack(2**30)))
        for stream in range(1, 81, 2):
            wire.write(head(stream, PATH, gzip), zipped(message, stream))
        for _ in range(36):
            assert b"grpc-status\x018" in (await wire.until(HEADERS)).payload
        await until(lambda: echo.running == 4)
        echo.free.set()
        for _ in range(4):
            assert await wire.until(DATA)
        wire.write(head(81, PATH, gzip), zipped(b"x", 81))
        assert (await wire.until(DATA, 81)).payload[5:] == b"x"


async def test_a_stream_of_compressed_requests_is_decompressed_as_it_is_read() -> None:
    """The inbox holds them as they came: 20 of 900 kB wait in 2 MiB of room."""
    message = b"".join(bytes((each % 251,)) * 40 for each in range(22_000))
    limits = Limits(receiving_bytes=2**21, message_bytes=2**20)
    async with echoing(limits) as (echo, port), wired(port) as wire:
        echo.free.clear()
        wire.write(frame(SETTINGS, 0, 0, SETTING.pack(4, 2**30)))
        wire.write(frame(frames.WINDOW, 0, 0, UINT32.pack(2**30)))
        wire.write(head(1, STREAM_PATH, ("grpc-encoding", b"gzip")))
        wire.write(*(zipped(message, ends=False) for _ in range(20)), zipped(b"last"))
        echo.free.set()
        received = 0
        while received < 20 * (len(message) + 5) + 9:
            received += len((await wire.until(DATA)).payload)
        assert await status(wire, 1) == 0


async def test_a_client_that_does_not_answer_is_left_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An idle connection whose client answers no PING is closed after its last GOAWAY."""
    monkeypatch.setattr(server_connection, "_LEAVING_S", 0.2)
    async with echoing(Limits(idle_s=0.1, dead_after_s=3.0)) as (_, port), wired(port) as wire:
        while await wire.next() is not None:
            pass
    leaving = [each for each in wire.came if each.kind == frames.GOAWAY]

    assert [UINT32.unpack_from(each.payload)[0] for each in leaving] == [2**31 - 1, 0]


async def test_calls_end_with_their_callers_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that expires in half a second: a call that runs ends UNAUTHENTICATED, then all."""
    monkeypatch.setattr(peer, "expires_s", lambda _: time.time() + 0.5)
    async with echoing() as (echo, port), wired(port) as wire:
        echo.free.clear()
        wire.write(head(1), data(1, b"x"))
        assert await status(wire, 1) == 16
        assert (await wire.until(frames.GOAWAY)).payload
        while await wire.next() is not None:
            pass
        assert echo.running == 0


async def test_who_begins_many_calls_at_once_leaves_others_their_turn() -> None:
    """Of 1,000 calls in one packet some begin in a turn of the loop, and in the end all."""
    async with echoing(Limits(streams=4_000)) as (echo, port), wired(port) as flood:
        await flood.until(SETTINGS)
        echo.free.clear()
        flood.write(*(head(stream) + data(stream, b"x") for stream in range(1, 2_001, 2)))
        begun = []
        async with asyncio.timeout(45):
            while (before := echo.running) < 1_000:
                await asyncio.sleep(0)  # one turn
                begun.append(echo.running - before)
        echo.free.set()
        await flood.until(DATA, 1_999)
        await still_served(port)

    assert max(begun) <= 64


async def test_watches_of_health_are_few_on_a_connection_and_checks_go_on() -> None:
    """Watching is free for all, so that a thousand watches are refused but 16."""
    async with (
        serving("127.0.0.1:0", lambda _: None, (), transport="own", grace_s=0.1) as server,
        wired(server.port) as wire,
    ):
        for stream in range(1, 201, 2):
            wire.write(head(stream, WATCH), data(stream, b""))
        for stream in range(33, 201, 2):
            assert await status(wire, stream) == 8
        wire.write(head(201, CHECK), data(201, b""))
        assert await status(wire, 201) == 0


async def test_a_service_refuses_by_the_head_and_counts_it() -> None:
    """Without a token a call of the table is answered UNAUTHENTICATED, its message not read."""

    async def infer(request: bytes, _: object) -> bytes:
        return request

    def register(server: grpc.aio.Server) -> None:
        handler: Any = grpc.unary_unary_rpc_method_handler(infer)
        _, service, method = INFER.split("/")
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )

    access = Access({"client": ("token:*",)}, lambda token: Token(token, 4e9))
    async with (
        serving("127.0.0.1:0", register, (), access=access, transport="own", grace_s=0.1) as server,
        wired(server.port) as wire,
    ):
        wire.write(head(1, INFER), head(3, INFER, ("authorization", b"Bearer ada")))
        assert await status(wire, 1) == 16
        wire.write(data(3, b"x"))
        assert await status(wire, 3) == 0


@pytest.mark.parametrize("rank", [UNKNOWN, KNOWN, OPERATOR])
def test_room_that_was_given_back_is_there_again(rank: int) -> None:
    """Nothing is lost: as many can take it again, a hundred times."""
    room, payer = Room(16), Payer("a", rank)
    for _ in range(100):
        taken = 0
        while room.take(payer, 2):
            taken += 1
        assert taken == (8 if rank == OPERATOR else 4)
        for _ in range(taken):
            room.give_back(payer, 2)
    assert room.taken == 0

"""Floods of the transport: calls, heads, windows, pings and connections in numbers.

Each holds for a few seconds while honest callers go on; what counts is whether these notice.
"""

from __future__ import annotations

import asyncio
import gzip
import resource
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Final

import grpc
import psutil

from benchmarks.attacks.target import Attack, Target
from benchmarks.attacks.wire import (
    CHECK,
    INFER,
    METADATA,
    READY,
    REPORT_LOAD,
    STREAM,
    WATCH,
    Field,
    Wire,
    data,
    head,
    wired,
)
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import Tls
from services.kit.h2.frames import CONTINUATION, DATA, HEADERS, PING, RESET, UINT32, WINDOW, frame
from services.kit.h2.messages import PREFIX
from services.kit.net import split_address
from services.kit.rpc import Limits, dial, serving
from services.local.pki import Identity

_CONNECTIONS: Final = 17
_HEADS: Final = 4000
_HOLD_S: Final = 5.0
_PING_S: Final = 3.0
_ENDS_S: Final = 8.0
_GZIPPED_BYTES: Final = 16 * 2**20
_CHECKED_S: Final = 2.0
_SHORT_S: Final = 4.0
_FEW_FILES: Final = 12
_REQUESTED: Final = 3000


@asynccontextmanager
async def _connections(
    target: Target, address: str, tls: Tls, count: int, **how: int
) -> AsyncIterator[list[Wire]]:
    """Open connections; those that the server does not take are left out."""
    async with AsyncExitStack() as stack:
        wires = []
        for _ in range(count):
            with suppress(OSError, TimeoutError):
                wires.append(await stack.enter_async_context(wired(target, address, tls, **how)))
        yield wires


async def _hold(wires: list[Wire], hold_s: float = _HOLD_S) -> None:
    """Keep connections for a while, with a PING now and then."""
    ends_s = time.monotonic() + hold_s
    while (left_s := ends_s - time.monotonic()) > 0:
        for wire in wires:
            wire.write(frame(PING, 0, 0, bytes(8)))
        await asyncio.sleep(min(_PING_S, left_s))


def _all_found(wires: list[Wire], began: int) -> str:
    ended = sum(len(wire.statuses) for wire in wires)
    closed = sum(wire.closed.is_set() for wire in wires)
    kinds = ", ".join(dict.fromkeys(found for wire in wires if (found := wire.found())))
    return f"{ended} of {began} ended ({kinds[:90]}), {closed} of {len(wires)} connections closed"


def heads(address: str, who: str, count: int = _CONNECTIONS, each: int = _HEADS) -> Attack:
    """Return the attack of calls that never send their message."""

    async def attack(target: Target) -> str:
        at = getattr(target, address)
        path = REPORT_LOAD if address == "planner" else INFER
        async with _connections(target, at, getattr(target, who), count) as wires:
            frames = [head(stream, path) for stream in range(1, 2 * each, 2)]
            await asyncio.gather(*(wire.pour(frames) for wire in wires))
            await _hold(wires)
            return _all_found(wires, each * count)

    return attack


async def watches(target: Target) -> str:
    """Watch the health 68,000 times, without an identity; then request it once."""
    async with _connections(target, target.token_port, target.stranger, _CONNECTIONS) as wires:
        for wire in wires:
            calls = (head(each, WATCH) + data(each, b"") for each in range(1, 2 * _HEADS, 2))
            await wire.pour(list(calls))
        await _hold(wires, _SHORT_S)
        found = _all_found(wires, _HEADS * _CONNECTIONS)
    async with wired(target, target.token_port, target.stranger) as wire:
        wire.write(head(1, CHECK) + data(1, b""))
        return found if await wire.until(lambda: 1 in wire.statuses, _CHECKED_S) else ""


async def unread(target: Target) -> str:
    """Request 8,000 answers, and give none of them room."""
    request = pb.ModelMetadataRequest(name="digits").SerializeToString()
    calls = [head(each, METADATA) + data(each, request) for each in range(1, 2000, 2)]
    async with _connections(target, target.router, target.attacker, 8, window=0) as wires:
        await asyncio.gather(*(wire.pour(calls) for wire in wires))
        await _hold(wires)
        return _all_found(wires, 8000)


def gzipped(address: str, who: str, count: int) -> Attack:
    """Return the attack of requests of 16 KiB that are 16 MiB."""

    async def attack(target: Target) -> str:
        packed = gzip.compress(bytes(_GZIPPED_BYTES))
        message = PREFIX.pack(1, len(packed)) + packed
        async with wired(target, getattr(target, address), getattr(target, who)) as wire:
            for stream in range(1, 2 * count, 2):
                wire.write(
                    head(stream, INFER, ("grpc-encoding", b"gzip")),
                    frame(WINDOW, 0, 0, UINT32.pack(2**16)),
                    *(
                        frame(DATA, int(at + 2**14 >= len(message)), stream, message[at:][: 2**14])
                        for at in range(0, len(message), 2**14)
                    ),
                )
            await wire.until(lambda: len(wire.statuses) == count, _HOLD_S)
            return _all_found([wire], count)

    return attack


async def header_caches(target: Target) -> str:
    """Send 512 heads of 16 KiB on each of 60 connections, in 36 kB each."""
    kept = b"\x40\x01a\x7f\xf9\x1d" + b"v" * 3960  # a field for the table
    async with _connections(target, target.token_port, target.stranger, 60) as wires:
        for wire in wires:
            calls = [frame(HEADERS, 5, 1, kept)]
            calls += [
                frame(HEADERS, 5, stream, b"\x00\x01b\x04%04x" % stream + b"\xbe" * 4)
                for stream in range(3, 1027, 2)
            ]
            await wire.pour(calls)
        await _hold(wires, _SHORT_S)
        return _all_found(wires, 60 * 513)


async def large_metadata(target: Target) -> str:
    """Send 17 kB and 100 kB of metadata on a proxy's connection that others' calls use, too."""
    request = pb.ServerReadyRequest().SerializeToString()
    async with wired(target, target.router, target.tls("client", "local")) as wire:
        wire.write(head(1, READY), head(3, READY))
        for stream, size in ((5, 17_000), (7, 100_000)):
            wire.write(*_in_pieces(head(stream, READY, ("x", b"v" * size))[9:], stream))
        wire.write(data(1, request), data(3, request))
        wire.write(head(9, READY) + data(9, request))
        await wire.until(lambda: {1, 3, 5, 7, 9} <= set(wire.statuses), _HOLD_S)
        others = [wire.statuses.get(stream) for stream in (1, 3, 9)]
        return wire.found() if others == ["0"] * 3 and not wire.closed.is_set() else ""


def _in_pieces(fields: bytes, stream: int) -> Iterator[bytes]:
    pieces = [fields[at : at + 2**14] for at in range(0, len(fields), 2**14)]
    for number, piece in enumerate(pieces):
        flags = 4 if number + 1 == len(pieces) else 0
        yield frame(CONTINUATION if number else HEADERS, flags, stream, piece)


async def expired(target: Target) -> str:
    """Go on with a connection whose certificate runs out."""
    target.authority.issue(Identity("client", "brief"), days=_SHORT_S / 86_400)
    ends_s = time.monotonic() + _SHORT_S
    async with wired(target, target.router, target.tls("client", "brief")) as wire:
        for stream in range(1, 200, 2):
            wire.write(head(stream, READY) + data(stream, b""))
            ended = await wire.until(wire.closed.is_set, 0.1)
            late_s = time.monotonic() - ends_s
            answered = wire.statuses.get(stream, wire.statuses.get(stream - 2)) == "0"
            if ended or (late_s > 0 and wire.statuses.get(stream) == "16"):
                return f"ended {late_s:.1f} s after it ran out"
            if late_s > _ENDS_S / 2 and answered:
                return ""
    return ""


async def stays(target: Target) -> str:
    """Ignore the PING of a server whose connections are idle or old (a server of its own)."""
    limits = Limits(idle_s=0.5, age_s=1.0, dead_after_s=4.0)
    async with (
        serving(
            "127.0.0.1:0",
            lambda _: None,
            (),
            tls=target.tls("router"),
            limits=limits,
            transport=target.transport,
            grace_s=0.1,
        ) as server,
        wired(target, f"127.0.0.1:{server.port}", target.attacker) as wire,
    ):
        wire.answers_pings = False
        began_s = time.monotonic()
        closed = await wire.until(wire.closed.is_set, _ENDS_S)
        return f"left after {time.monotonic() - began_s:.1f} s" if closed else ""


async def many_questions(target: Target) -> str:
    """Request what the server is, 3,000 times, as a client with a quota of 300 a second."""
    async with dial(target.router, target.tls("client", "limited")) as channel:
        stub = GRPCInferenceServiceStub(channel)
        began_s = time.monotonic()
        calls = [stub.ServerMetadata(pb.ServerMetadataRequest()) for _ in range(_REQUESTED)]
        codes = [await call.code() for call in calls]
        took_s = time.monotonic() - began_s
    answered = codes.count(grpc.StatusCode.OK)
    found = f"{answered} of {_REQUESTED} answered in {took_s:.1f} s"
    return found if answered <= 300 * (took_s + 1) * 1.1 else ""


def out_of_files(process: str, address: str) -> Attack:
    """Return the attack of more connections than a service has file descriptors for."""

    async def attack(target: Target) -> str:
        pid = target.process(process)
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        few = psutil.Process(pid).num_fds() + _FEW_FILES
        host, port = split_address(_listening(target, address))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, limits[1]))
        writers = []
        try:
            for _ in range(5 * _FEW_FILES):
                with suppress(OSError):
                    writers.append((await asyncio.open_connection(host, port))[1])
            await asyncio.sleep(_SHORT_S / 2)
        finally:
            if psutil.pid_exists(pid):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            for writer in writers:
                writer.transport.abort()
        async with wired(target, _listening(target, address), target.operator) as wire:
            wire.write(head(1, CHECK) + data(1, b""))
            answered = await wire.until(lambda: wire.statuses.get(1) == "0", _SHORT_S)
        lives = target.suite.processes.get(process) == pid
        return f"{process} lives and answers" if lives and answered else ""

    return attack


def _listening(target: Target, address: str) -> str:
    if address == "agent":
        return target.deployment.nodes["node-0"].listen
    return str(getattr(target, address))


async def answered_then_reset(target: Target) -> str:
    """End each of 2,000 answered calls with RST_STREAM, as Envoy's ext_proc does: no attack."""
    request = pb.ModelInferRequest(model_name="none").SerializeToString()
    async with wired(target, target.router, target.tls("client", "local")) as wire:
        for first in range(1, 4001, 200):
            streams = range(first, first + 200, 2)
            wire.write(*(head(each, STREAM) + data(each, request, ends=False) for each in streams))
            if not await wire.until(partial(wire.answered.issuperset, streams), _HOLD_S):
                return ""
            wire.write(*(frame(RESET, 0, each, UINT32.pack(8)) for each in streams))
        wire.write(head(4001, READY) + data(4001, b""))
        good = await wire.until(lambda: wire.statuses.get(4001) == "0", _HOLD_S)
        return f"{len(wire.answered)} answered; the connection goes on" if good else ""


async def rapid_reset(target: Target) -> str:
    """Begin 20,000 calls and withdraw them at once."""
    async with wired(target, target.router, target.attacker) as wire:
        await wire.pour(
            [
                head(each, INFER) + data(each, b"x") + frame(RESET, 0, each, UINT32.pack(8))
                for each in range(1, 40_001, 2)
            ]
        )
        await wire.until(wire.closed.is_set, _SHORT_S)
        return _all_found([wire], 20_000)


async def server_resets(target: Target) -> str:
    """Make the server reset 20,000 calls (MadeYouReset)."""
    async with wired(target, target.router, target.attacker) as wire:
        await wire.pour(
            [
                head(each, INFER) + frame(WINDOW, 0, each, UINT32.pack(0))
                for each in range(1, 40_001, 2)
            ]
        )
        await wire.until(wire.closed.is_set, _SHORT_S)
        return _all_found([wire], 20_000)


_MALFORMED: Final[dict[str, tuple[Field, ...]]] = {
    "unknown pseudo-header": ((":shape", b"x"),),
    "path twice": ((":path", b"/a"),),
    "connection": (("connection", b"close"),),
    "transfer-encoding": (("transfer-encoding", b"chunked"),),
    "CR LF in a value": (("x", b"a\r\nb: c"),),
    "NUL in a value": (("x", b"a\0b"),),
    "upper case": (("X-Upper", b"a"),),
    "another content": (("content-type", b"application/grpcfoo"),),
    "lying content-length": (("content-length", b"77"),),
    "te: gzip": (("te", b"gzip"),),
}


async def malformed(target: Target) -> str:
    """Send requests that RFC 9113 calls malformed, between those of others on the connection."""
    async with wired(target, target.router, target.tls("client", "local")) as wire:
        wire.write(head(1, READY))
        for number, fields in enumerate(_MALFORMED.values()):
            stream = 3 + 2 * number
            wire.write(head(stream, READY, *fields) + data(stream, b""))
        last = 3 + 2 * len(_MALFORMED)
        wire.write(data(1, b""), head(last, READY) + data(last, b""))
        await wire.until(lambda: len(wire.statuses) == len(_MALFORMED) + 2, _SHORT_S)
        statuses = dict(wire.statuses)
        good = statuses.pop(1, "") == statuses.pop(last, "") == "0"
        taken = [
            name for number, name in enumerate(_MALFORMED) if statuses.get(3 + 2 * number) == "0"
        ]
        if not good or wire.closed.is_set() or taken:
            return ""
        return f"{len(statuses)} of {len(_MALFORMED)} refused, the others' calls answered"


def floods() -> Iterator[tuple[str, str, Attack]]:
    """Yield every flood: by whom, its name, the attack."""
    client, stranger = "a client", "no identity"
    yield client, "17 x 4,000 heads without messages", heads("router", "attacker")
    yield stranger, "17 x 4,000 heads without messages", heads("token_port", "stranger")
    yield client, "70 x 128 heads at the planner", heads("planner", "attacker", 70, 128)
    yield stranger, "17 x 4,000 Health.Watch", watches
    yield client, "8,000 answers without room (window 0)", unread
    yield client, "150 gzip calls of 16 MiB", gzipped("router", "attacker", 150)
    yield stranger, "60 gzip calls of 16 MiB", gzipped("token_port", "stranger", 60)
    yield stranger, "60 x 512 heads of 16 KiB by reference", header_caches
    yield client, "17 and 100 kB of metadata through a proxy", large_metadata
    yield client, "stays with an expired certificate", expired
    yield client, "stays though idle and old", stays
    yield client, "3,000 ServerMetadata", many_questions
    yield stranger, "router out of file descriptors", out_of_files("router", "router")
    yield stranger, "agent out of file descriptors", out_of_files("gpuagent-node-0", "agent")
    yield client, "2,000 answered calls that are reset", answered_then_reset
    yield client, "rapid reset", rapid_reset
    yield client, "resets by the server (MadeYouReset)", server_resets
    yield client, "malformed requests of RFC 9113", malformed

"""The router's benchmark with real servers: it measures what it says it does."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from benchmarks.router import client, generators, messages
from benchmarks.router.backend import raw
from benchmarks.router.generators import Generate, Work, Wrong
from benchmarks.router.samples import CASES, Cell
from benchmarks.router.speed import Plan, speeds

SHORTEST = len(messages.answer())

Infer = Callable[[bytes, grpc.aio.ServicerContext[Any, Any]], Awaitable[bytes]]


@asynccontextmanager
async def answering(infer: Infer) -> AsyncIterator[int]:
    """A raw server; yields its port."""
    server = grpc.aio.server(options=messages.OPTIONS)
    server.add_generic_rpc_handlers((raw(infer),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def timed(work: Work, rows: Path) -> None:
    """The client of machines without h2load, in this process: no start to wait for."""
    lines = await client.generate(*work[:5])
    await asyncio.to_thread(rows.write_text, "".join(lines))


async def counted(work: Work, rows: Path) -> None:
    """One request after another, as many as are in flight; the last one is after the warm-up."""
    async with messages.channel(work.port) as channel:
        for _ in range(work.in_flight):
            answer = await messages.infer(channel)(messages.request(work.size))
            assert messages.wrong(answer, receipt=False) == ""
    starts_us = [0] * work.in_flight + [int(work.duration_s * 1e6)]
    lines = [f"{start_us}\t200\t1000\n" for start_us in starts_us]
    await asyncio.to_thread(rows.write_text, "".join(lines))


async def test_it_measures_the_router_between_client_and_worker(tmp_path: Path) -> None:
    """The real router and what stands beside it; who cannot run is left out with the reason.

    A sample means that answers were read before and after, Cinquefoil's with their receipts.
    """
    wanted, absent = ("passthrough", "mlserver", "cinquefoil"), {"mlserver": "not installed"}

    found = await speeds(wanted, absent, Plan(1, 1.0), counted, tmp_path)

    assert found.absent == absent
    paths = ("direct", "passthrough", "cinquefoil")
    assert found.samples.keys() == {Cell(case, path) for case in CASES for path in paths}
    for samples in found.samples.values():
        assert [sample.p50_ms for sample in samples] == [1.0]


@pytest.mark.parametrize("generate", [generators.h2load, timed], ids=["h2load", "grpc.aio"])
async def test_a_generator_counts_each_answer_once(tmp_path: Path, generate: Generate) -> None:
    """The server counts, too; what the generator left behind at the end is not counted."""
    if generate is generators.h2load and shutil.which("h2load") is None:
        pytest.skip("h2load is not installed: apt install nghttp2-client")
    received = 0

    async def infer(body: bytes, _: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        nonlocal received
        assert body == messages.request("small")
        received += 1
        return messages.answer()

    for duration_s in (0.3, 2.0, 8.0):  # on a busy machine a warm-up may be all that there is
        received = 0
        with suppress(Wrong):
            async with answering(infer) as port:
                work = Work(port, "small", 64, 8, duration_s, SHORTEST)
                found = await generators.measured(generate, work, tmp_path)
            break

    assert 0 <= received - found.total <= 64
    assert 0 < found.latencies_ms.size <= found.total


async def test_h2load_takes_no_grpc_error_for_an_answer(tmp_path: Path) -> None:
    """In HTTP it is a 200; that it carries no message shows even where one in ten fails."""
    if shutil.which("h2load") is None:
        pytest.skip("h2load is not installed: apt install nghttp2-client")

    received = 0

    async def infer(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        nonlocal received
        received += 1
        if received % 10 == 0:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")
        return messages.answer()

    async with answering(infer) as port:
        with pytest.raises(Wrong, match="bytes"):
            await generators.h2load(Work(port, "small", 1, 1, 0.2, SHORTEST), tmp_path / "load.tsv")

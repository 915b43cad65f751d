"""A load generator without h2load: closed loops over grpc.aio.

python -m benchmarks.router.client PORT SIZE IN_FLIGHT CONNECTIONS DURATION_S FILE [FOLDER TOKEN]
"""

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.router import messages
from benchmarks.router.security import Security


async def generate(  # noqa: PLR0913, PLR0917 - what a load is made of
    port: int,
    size: str,
    in_flight: int,
    connections: int,
    duration_s: float,
    security: Security | None = None,
) -> list[str]:
    """Keep so many requests in flight; return a row per answer.

    Raises:
        grpc.aio.AioRpcError: One was not answered.
    """
    body, rows = messages.request(size), list[str]()
    end_s = time.perf_counter() + duration_s

    async def send(call: Any) -> None:
        while (begin_s := time.perf_counter()) < end_s:
            start_us = time.time_ns() // 1000
            await call(body)
            rows.append(f"{start_us}\t200\t{round((time.perf_counter() - begin_s) * 1e6)}\n")

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            call = messages.infer(await stack.enter_async_context(messages.channel(port, security)))
            for _ in range(in_flight // connections):
                tasks.create_task(send(call), name="client.send")
    return rows


if __name__ == "__main__":
    _, port, size, in_flight, connections, duration_s, file, *shown = sys.argv
    security = Security(Path(shown[0]), shown[1]) if shown else None
    rows = uvloop.run(
        generate(int(port), size, int(in_flight), int(connections), float(duration_s), security)
    )
    Path(file).write_text("".join(rows))

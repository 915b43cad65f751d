"""A batch service under test, in this process, beside a router with scripted workers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from services.batch.app import run
from services.kit.config import BatchService, Deployment
from services.kit.net import free_port
from tests.support.router.router_service import World

HOST = "127.0.0.1"
INFER = "/v2/models/digits/infer"


def settings(folder: Path, **given: Any) -> BatchService:
    """Return the section of a batch service whose state lies in a folder."""
    return BatchService(
        **{
            "listen": f"{HOST}:0",
            "http_listen": f"{HOST}:{free_port()}",
            "database": folder / "batch.sqlite3",
            "files": str(folder / "files"),
            "min_free_mib": 0,
            **given,
        }
    )


@asynccontextmanager
async def serving_batches(deployment: Deployment) -> AsyncIterator[AsyncOpenAI]:
    """Run the batch service of a deployment; yield an unmodified client of it."""
    assert deployment.batch is not None
    stop, started = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(run(deployment, stop, lambda _: started.set()))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    url = f"http://{deployment.batch.http_listen}/v1"
    try:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client
    finally:
        waiting.cancel()
        stop.set()
        await task


def deployment_of(world: World, batch: BatchService) -> Deployment:
    """Return the router's deployment with a batch service."""
    return world.made.model_copy(update={"batch": batch})


def row(number: int, values: Sequence[float] = (1, 2, 3, 4)) -> dict[str, Any]:
    """Return a line whose answer is the sum of a row."""
    tensor = {"name": "x", "shape": [1, len(values)], "datatype": "FP32", "data": list(values)}
    return {"custom_id": f"r{number}", "method": "POST", "url": INFER, "body": {"inputs": [tensor]}}


def jsonl(lines: Sequence[Any]) -> bytes:
    """Return lines as a file; bytes are lines themselves."""
    return b"".join(
        (each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in lines
    )


async def until(client: AsyncOpenAI, batch: str, holds: Callable[[Any], bool]) -> Any:
    """Return a batch of which something holds; fail after a minute."""
    async with asyncio.timeout(60):
        while True:
            found = await client.batches.retrieve(batch)
            if holds(found):
                return found
            await asyncio.sleep(0.05)


async def ended(client: AsyncOpenAI, batch: str) -> Any:
    """Return a batch that has ended."""
    states = {"completed", "failed", "expired", "cancelled"}
    return await until(client, batch, lambda found: found.status in states)


async def lines_of(client: AsyncOpenAI, file: str | None) -> list[dict[str, Any]]:
    """Return the lines of a file of results."""
    if not file:
        return []
    content = await client.files.content(file)
    return [json.loads(each) for each in content.text.splitlines()]

"""A batch service that is killed again and again loses no line and doubles none."""

import asyncio
import json
import random
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from openai import APIConnectionError, AsyncOpenAI

from cinquefoil.gpuagent.v1 import worker_pb2
from services.kit.config import Deployment
from services.kit.net import free_port
from tests.support.batch_service import INFER, ended, jsonl, row, settings
from tests.support.paths import ROOT
from tests.support.router.router_service import computed, running

LINES, KILLS = 1500, 5


@asynccontextmanager
async def process(config: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A batch service as a process of its own, which is killed at the end."""
    command = (sys.executable, "-m", "services.cli", "batch", "serve", "--config", str(config))
    null = asyncio.subprocess.DEVNULL
    started = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=null, stderr=null)
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


def written(deployment: Deployment, folder: Path) -> Path:
    """Write a deployment file."""
    path = folder / "cinquefoil.yaml"
    document = deployment.model_dump(mode="json", exclude_unset=True)
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.timeout(180)
async def test_kills_lose_and_double_no_line(tmp_path: Path) -> None:
    """Killed by SIGKILL while lines are answered, five times: each has exactly one result."""
    answers = Counter[int]()

    def answer(work: worker_pb2.Work) -> worker_pb2.Result | None:
        answers[work.id] += 1
        return computed(work)

    section = settings(tmp_path, max_in_flight=16)
    sections = {"batch": section.model_dump(mode="json", exclude_unset=True)}
    url, rng = f"http://{section.http_listen}/v1", random.Random(7)
    async with (
        running(http_listen=f"127.0.0.1:{free_port()}", max_queue=50, sections=sections) as world,
        AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as client,
    ):
        await world.route(await world.worker("a", answer))
        made = world.made.model_copy(
            update={"router": world.made.router.model_copy(update={"http_listen": world.http})}
        )
        config, batch = written(made, tmp_path), ""
        for kill in range(KILLS + 1):
            async with process(config):
                await eventually_listed(client)
                if not batch:
                    content = jsonl([row(n, (n, 0, 0, 0)) for n in range(LINES)])
                    file = await client.files.create(file=("in", content), purpose="batch")
                    begun = await client.batches.create(
                        input_file_id=file.id,
                        endpoint=INFER,  # type: ignore[arg-type]  # ours beside OpenAI's
                        completion_window="24h",
                    )
                    batch = begun.id
                if kill < KILLS:
                    await asyncio.sleep(rng.uniform(0.05, 0.6))
                    continue
                done = await ended(client, batch)
                found = (await client.files.content(done.output_file_id or "")).text.splitlines()

    assert done.request_counts is not None
    assert done.request_counts.model_dump() == {"total": LINES, "completed": LINES, "failed": 0}
    sums = [json.loads(each)["response"]["body"]["outputs"][0]["data"][0] for each in found]
    assert sums == [float(n) for n in range(LINES)]
    with sqlite3.connect(section.database) as database:
        left = database.execute("SELECT count(*) FROM batch_results").fetchone()
    assert left == (0,)


async def eventually_listed(client: AsyncOpenAI) -> None:
    """Wait until the service answers."""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.batches.list()
            except APIConnectionError:
                await asyncio.sleep(0.1)
            else:
                return

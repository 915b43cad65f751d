"""Servers of language models that sleep while they have no text, and wake for the next one."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from services.kit.config import OpenAiRuntime
from tests.rpc.worker.test_openai_server import server_of
from tests.support.paths import SUPPORT
from tests.support.worker.language_worker import prompt, text_of
from tests.support.worker.worker_process import (
    Router,
    routed,
    work,
    worker,
    worker_spec,
)

_SERVER = SUPPORT / "openai_server.py"


@asynccontextmanager
async def sleeping(folder: Path, **sleep: Any) -> AsyncIterator[tuple[Router, str]]:
    """Start a worker whose server sleeps; yield a router that it serves, and the server's URL."""
    command = (sys.executable, str(_SERVER), "{port}", str(folder / "fault"))
    runtime = OpenAiRuntime(kind="openai", slots=4, chat=False, command=command, sleep=sleep)
    spec = worker_spec(folder, folder / "no-file", runtime=runtime)
    async with worker(spec) as running, routed(spec.listen) as router:
        yield router, server_of(running)


async def asleep(url: str) -> tuple[bool, int]:
    """Return whether a server sleeps, and how often it fell asleep."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/is_sleeping") as answer:
        found = await answer.json()
    return found["is_sleeping"], found["sleeps"]


async def until_asleep(url: str) -> None:
    async with asyncio.timeout(45):
        while not (await asleep(url))[0]:  # noqa: ASYNC110 - another process has no events
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("level", [1, 2])
async def test_a_server_sleeps_without_texts_and_is_woken_once_for_all_that_come(
    tmp_path: Path, level: int
) -> None:
    """Dropped weights are read again before the cache returns; no text meets a sleeping server."""
    async with sleeping(tmp_path, after_s=0.5, level=level) as (router, url):
        for round_ in (1, 2):
            await until_asleep(url)
            numbers = [10 * round_ + number for number in range(3)]
            await router.send(*(work(number, prompt("1 2 3", 2)) for number in numbers))
            answers = await router.wait_for(*numbers)

            assert [text_of(each.response) for each in answers] == [" 4 5"] * 3
            assert await asleep(url) == (False, round_)


async def test_a_server_with_a_text_does_not_sleep(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    async with sleeping(tmp_path, after_s=0.5) as (router, url):
        fault.write_text("pause")
        text = asyncio.create_task(router.infer(prompt("1 2 3", 4), 1))
        await asyncio.sleep(1.0)
        _, before = await asleep(url)
        await asyncio.sleep(3.0)
        after = await asleep(url)
        fault.unlink()

        assert after == (False, before)
        assert text_of((await text).response) == " 4 5 6 7"


async def test_a_server_that_cannot_sleep_stays_awake_and_answers(tmp_path: Path) -> None:
    """A vLLM without VLLM_SERVER_DEV_MODE answers 404."""
    (tmp_path / "fault").write_text("no-sleep")
    async with sleeping(tmp_path, after_s=0.2) as (router, url):
        await asyncio.sleep(3.0)

        assert text_of((await router.infer(prompt("1 2 3", 2), 1)).response) == " 4 5"
        assert await asleep(url) == (False, 0)


def test_a_server_of_others_is_never_put_to_sleep() -> None:
    with pytest.raises(ValueError, match="sleep: only with command"):
        OpenAiRuntime(kind="openai", address="127.0.0.1:9", sleep={"after_s": 1.0})

"""The suite where the environment names proxies, as in most companies."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import yaml

from services.kit.net import free_port
from services.kit.proxies import VARIABLES
from tests.support.paths import ROOT
from tests.system.test_pipeline import config, digits_models, whole

__all__ = ["config", "digits_models", "whole"]

pytestmark = [pytest.mark.system, pytest.mark.timeout(150)]


@pytest.fixture
def console(config: Path) -> str:
    """The address of a console, which is added to the deployment."""
    document = yaml.safe_load(config.read_text())
    address = f"127.0.0.1:{free_port()}"
    config.write_text(yaml.safe_dump(document | {"console": {"listen": address}}))
    return address


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[dict[str, str], list[str]]]:
    """Yield an environment whose every proxy is a server that never answers, and its callers."""
    callers: list[str] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append((await reader.readline()).decode(errors="replace"))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as server:
        at = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        named = {name: at for each in VARIABLES for name in (each, each.upper())}
        rest = {k: v for k, v in os.environ.items() if k.lower() != "no_proxy"}
        yield rest | named, callers


async def start(environment: dict[str, str], *words: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *map(str, words)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
        env=environment,
    )


async def said(environment: dict[str, str], *words: object) -> str:
    """Return what a command prints; it must succeed."""
    process = await start(environment, *words)
    output, _ = await process.communicate()
    assert process.returncode == 0, (words, output.decode())
    return output.decode()


async def test_the_suite_and_its_commands_call_one_another_directly(
    config: Path, console: str, tmp_path: Path
) -> None:
    """`up`, its agents, workers and pipelines, every kind of command, and the console's pages."""
    np.savez(tmp_path / "image.npz", image=np.ones((1, 64), np.float32))
    async with proxied() as (environment, callers):
        up = await start(environment, "up", "-c", config, "--logs", tmp_path / "logs")
        assert up.stdout is not None
        try:
            printed = ""
            while "In a browser" not in printed:
                printed = (await up.stdout.readline()).decode()
                assert printed, "up ended"
            at = ("-c", config)
            infer = ("infer", "digits", "--input", tmp_path / "image.npz", "--json", *at)
            answer = json.loads(await said(environment, *infer))
            for words in ("status", "plan show", "health router", "nodes list", "models list"):
                assert await said(environment, *words.split(), *at)
            assert await status_of(f"http://{console}/") == 200
        finally:
            up.terminate()
            await up.communicate()

    assert answer["parameters"]["model_variant"] == "deep"
    assert callers == []


async def status_of(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status

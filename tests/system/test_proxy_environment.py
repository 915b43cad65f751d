"""The suite where the environment names proxies, as in most companies."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import yaml

from services.kit.config.loader import load
from services.kit.net import free_port
from services.kit.proxies import VARIABLES
from services.local.up.health import until_answering
from services.local.up.suite import Suite
from tests.support.cli.fake_services import cinquefoil
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


@pytest.fixture
async def callers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """The environment's every proxy is a server that never answers; what it was sent."""
    callers: list[str] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append((await reader.readline()).decode(errors="replace"))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as server:
        at = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for each in VARIABLES:
            monkeypatch.setenv(each, at)
            monkeypatch.setenv(each.upper(), at)
        for each in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(each, raising=False)
        yield callers


async def said(*words: str | Path) -> str:
    """Return what a command prints; it must succeed."""
    ended = await cinquefoil(*words)
    assert ended.status == 0, (words, ended.err)
    return ended.out


async def test_the_suite_and_its_commands_call_one_another_directly(
    callers: list[str], config: Path, console: str, tmp_path: Path
) -> None:
    """Services, agents, workers and pipelines, every kind of command, and the console's pages."""
    np.savez(tmp_path / "image.npz", image=np.ones((1, 64), np.float32))
    deployment = load(config)
    async with Suite.of(config, tmp_path / "logs", with_console=True):
        await until_answering(deployment.router.dial, None)
        infer = ("infer", "digits", "--input", tmp_path / "image.npz", "--json")
        answer = json.loads(await said(*infer, "-c", config))
        for words in ("status", "plan show", "health router", "nodes list", "models list"):
            assert await said(*words.split(), "-c", config)
        assert await status_of(f"http://{console}/") == 200

    assert answer["parameters"]["model_variant"] == "deep"
    assert callers == []


async def status_of(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status

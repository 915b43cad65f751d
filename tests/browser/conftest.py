"""A real browser on a console over a real planner; skipped with the reason where there is none."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio

from cinquefoil.planner.v1 import planner_pb2
from services.cli.client import Clients, connected
from services.cli.web_console.identity import READ_ONLY, Rights, Tokens
from services.cli.web_console.operators import carry_out
from services.cli.web_console.readers import ServiceReaders
from services.cli.web_console.server import serve
from services.kit import config
from services.kit.net import free_port
from tests.support.fake_agent import Agent, Grid, active, carbon, deployment, living, planner

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

TOKEN = "t" * 32
PATIENCE_MS = 30_000
"""Longest wait for what is expected, on a busy machine."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@asynccontextmanager
async def console(settings: config.Deployment, *, changes: bool = False) -> AsyncIterator[str]:
    """Serve the console of a deployment while the block runs; yield its address."""
    at, stop = f"127.0.0.1:{free_port()}", asyncio.Event()
    async with connected(settings) as clients:
        serving = asyncio.create_task(
            serve(_readers(clients, settings), at, stop, _rights(clients, changes=changes))
        )
        try:
            await _listening(at)
            yield f"http://{at}"
        finally:
            stop.set()
            await serving


async def _listening(at: str) -> None:
    async with httpx.AsyncClient() as program:
        while True:
            with suppress(httpx.ConnectError):
                await program.get(f"http://{at}/")
                return
            await asyncio.sleep(0.01)


def _readers(clients: Clients, settings: config.Deployment) -> ServiceReaders:
    return ServiceReaders(clients, settings, time.monotonic)


def _rights(clients: Clients, *, changes: bool) -> Rights:
    return Rights(Tokens({"ada": TOKEN}), partial(carry_out, clients)) if changes else READ_ONLY


def planned(
    folder: Path, carbon_port: int, nodes: tuple[str, ...] = ("node-a",)
) -> config.Deployment:
    """Return a deployment whose planner and router have addresses of their own."""
    settings = deployment(
        folder,
        carbon_port,
        nodes,
        listen=f"127.0.0.1:{free_port()}",
        triggers=config.Triggers(min_interval_s=0.0, settle_s=0.1),
        strategy="exact",
        objective=config.Objective(carbon_weight=1.0),
    )
    away = config.Router(listen=f"127.0.0.1:{free_port()}")
    far = config.PeerRegion(planner=f"127.0.0.1:{free_port()}", router=f"127.0.0.1:{free_port()}")
    regions = config.Regions(name="home", peers={"far": far})
    return settings.model_copy(update={"router": away, "regions": regions})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[config.Deployment]:
    """A deployment whose planner has plan 2 active: plan 1 is for carbon, 2 for accuracy."""
    async with carbon() as grid, two_plans(tmp_path_factory.mktemp("browser"), grid) as settings:
        yield settings


@asynccontextmanager
async def two_plans(folder: Path, grid: Grid) -> AsyncIterator[config.Deployment]:
    """Run a planner that has made two plans while the block runs; yield its deployment."""
    settings = planned(folder, grid.port)
    async with planner(settings) as stub, living(Agent("node-a", ("GPU-1", "GPU-2")), stub):
        await active(stub, 1)
        await stub.SetObjective(planner_pb2.SetObjectiveRequest(carbon_weight=0.0))
        await active(stub, 2)
        yield settings


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reading(running: config.Deployment) -> AsyncIterator[str]:
    """The address of its console, read-only."""
    async with console(running) as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def changing(running: config.Deployment) -> AsyncIterator[str]:
    """The address of its console that lets the owner of TOKEN change it."""
    async with console(running, changes=True) as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator["Browser"]:
    """Chromium."""
    api = pytest.importorskip("playwright.async_api", reason="pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no chromium on the path: apt-get install chromium")
    api.expect.set_options(timeout=PATIENCE_MS)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has none for root
    async with api.async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: "Browser") -> AsyncIterator["Page"]:
    """A page of its own session; whatever it logs as an error fails the test at its end."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    opened = await context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda said: _note(said, errors))
    yield opened
    await context.close()
    assert not errors


def _note(said: Any, errors: list[str]) -> None:
    """Note what breaks the policy; answers of 4xx and 5xx are what some tests are about."""
    if said.type == "error" and "Failed to load resource" not in said.text:
        errors.append(said.text)

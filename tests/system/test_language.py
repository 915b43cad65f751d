"""Two replicas of an OpenAI-compatible server under objectives of tokens, with OpenAI's client."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import httpx
import pytest
import pytest_asyncio
import yaml

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import Clients, connected
from services.cli.status.show import fetch
from services.cli.web_console.app import application
from services.cli.web_console.readers import ServiceReaders
from services.kit.config.loader import load
from services.kit.http.server import serving_http
from services.kit.net import free_port
from services.local.up.suite import Suite
from tests.support.gpuagent.agent_service import workers_in
from tests.support.paths import SUPPORT
from tests.support.running_suite import SHARED

if TYPE_CHECKING:
    from openai import AsyncOpenAI

pytestmark = [SHARED, pytest.mark.system, pytest.mark.timeout(120)]

T = TypeVar("T")

ZONE, MODEL = "US-CAL", "chat"
CLEAN, DIRTY = 40, 400
"""Of the grid, gCO2e/kWh."""


@pytest.fixture(scope="module", autouse=True)
def _import_the_client() -> None:
    """Import it before a loop runs, but not in every process that collects: it takes seconds."""
    import openai  # noqa: F401


def deployment(folder: Path) -> dict[str, object]:
    """Two GPUs, and a model of eight and of three billion parameters."""
    server = [sys.executable, str(SUPPORT / "openai_server.py"), "{port}", str(folder / "fault")]
    runtime = {"kind": "openai", "command": server, "chat": False}
    variants = {
        f"{size}b": {
            "accuracy": accuracy,
            "profile": {"kind": "language", "parameters_b": size},
            "runtime": runtime,
        }
        for size, accuracy in ((8, 68.0), (3, 62.0))
    }
    listens = [f"127.0.0.1:{free_port()}" for _ in range(5)]
    return {
        "version": "v1",
        "carbon": {"listen": listens[0], "zones": {ZONE: grid(DIRTY)}},
        "nodes": {
            "node-0": {
                "listen": listens[1],
                "zone": ZONE,
                "simulated": ["h100-80gb"] * 2,
                "state_dir": str(folder / "state"),
            }
        },
        "models": {
            MODEL: {
                "slo": {"percentile": 99, "ttft_s": 1.0, "tpot_s": 0.03, "latency_s": 30},
                "demand_rps": 20,
                "instance_choice": "consolidated",
                "replicas_min": 2,
                "accuracy_unit": "MMLU",
                "variants": variants,
            }
        },
        "planner": {
            "listen": listens[2],
            "database": str(folder / "planner.sqlite3"),
            "batch_sizes": [16, 64],
            "max_processes": 1,
            "clock_ratios": [0.6, 0.8, 1.0],
            "objective": {"park_idle_gpus": True},
            "triggers": {"min_interval_s": 0.5, "settle_s": 0.2, "intensity_dwell_s": 0},
        },
        "router": {"listen": listens[3], "http_listen": listens[4]},
    }


def grid(intensity: float) -> dict[str, object]:
    return {"source": {"kind": "static", "intensity_gco2e_per_kwh": intensity}}


class World(NamedTuple):
    """A suite, its clients and its deployment file."""

    suite: Suite
    openai: AsyncOpenAI
    clients: Clients
    file: Path

    async def newest(self) -> plan_pb2.Plan:
        """Return the newest plan."""
        request = planner_pb2.GetPlanRequest()
        return (await self.clients.planner.GetPlan(request, timeout=5)).plan

    async def plan(self, wanted: Callable[[plan_pb2.Plan], bool]) -> plan_pb2.Plan:
        """Wait until a plan is as wanted and in force."""
        return await until(
            self.newest, lambda plan: plan.state == plan_pb2.PLAN_STATE_ACTIVE and wanted(plan)
        )

    async def text(self, prompt: int, tokens: int, heard: list[str] | None = None) -> str:
        """Stream an answer, whose parts are put into `heard`, too; "!": it ended with an error."""
        from openai import APIError

        heard = [] if heard is None else heard
        try:
            stream = await self.openai.completions.create(
                model=MODEL, prompt=str(prompt), max_tokens=tokens, stream=True
            )
            async for chunk in stream:
                heard += [choice.text for choice in chunk.choices if choice.text]
        except APIError:
            heard.append("!")
        return "".join(heard)

    async def load(self) -> None:
        """Generate short answers, many times the configured demand."""
        while True:
            assert "!" not in await asyncio.gather(*(self.text(1, 2) for _ in range(16)))
            await asyncio.sleep(0.05)

    async def at_replicas(self, number: int) -> None:
        """Wait until so many requests are at the replicas."""
        status = partial(fetch, self.clients, load(self.file))
        await until(status, lambda found: found.models[0].in_flight == number)


async def until(look: Callable[[], Awaitable[T]], true: Callable[[T], bool]) -> T:
    """Look again and again until it is as wanted."""
    async with asyncio.timeout(60):
        while not true(seen := await look()):  # noqa: ASYNC110 - other processes'
            await asyncio.sleep(0.05)
    return seen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(folder: Path) -> AsyncIterator[World]:
    """Two replicas that answer."""
    from openai import AsyncOpenAI

    file = folder / "cinquefoil.yaml"
    file.write_text(yaml.safe_dump(deployment(folder)))
    settings = load(file)
    url = f"http://{settings.router.http_listen}/v1"
    async with (
        Suite.of(file, folder / "logs") as suite,
        connected(settings) as clients,
        AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        made = World(suite, client, clients, file)
        await made.plan(lambda plan: len(plan.segments) > 1)
        await until(client.models.list, lambda listed: bool(listed.data))
        yield made


async def test_tokens_come_with_their_cost_and_operators_see_them(world: World) -> None:
    """The client's usage, `cinquefoil status` and the console's page show the same tokens."""
    stream = await world.openai.completions.create(
        model=MODEL,
        prompt="1 2 3",
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    *parts, last = [chunk async for chunk in stream]
    settings = load(world.file)
    readers = ServiceReaders(world.clients, settings, time.monotonic)
    app = application(readers, ["127.0.0.1"])
    async with (
        serving_http("127.0.0.1:0", app, max_connections=1, grace_s=0.0) as port,
        httpx.AsyncClient() as browser,
    ):
        page = (await browser.get(f"http://127.0.0.1:{port}/api/now")).json()
    (statistics,) = (await fetch(world.clients, settings)).models

    assert "".join(choice.text for chunk in parts for choice in chunk.choices) == " 4 5 6 7"
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 4)
    extra = (last.usage.model_extra or {})["cinquefoil"]
    assert extra["model_variant"] == "3b"
    assert extra["energy_total_j_per_token"] > extra["energy_active_j_per_token"] > 0
    assert extra["carbon_total_gco2e_per_token"] > extra["carbon_active_gco2e_per_token"] > 0
    assert (statistics.input_tokens, statistics.output_tokens) == (3, 4)
    (shown,) = page["status"]["models"]
    assert (shown["input_tokens"], shown["output_tokens"]) == (3, 4)


async def test_a_killed_replica_loses_nothing_that_had_not_begun(
    world: World, folder: Path
) -> None:
    """Answers that had begun there end with an error; all others come from the other replica."""
    whole = ["".join(f" {100 * at + made}" for made in range(1, 6)) for at in range(8)]
    heard: list[list[str]] = [[] for _ in whole]
    (folder / "fault").write_text("pause")
    begun = [asyncio.create_task(world.text(100 * at, 5, each)) for at, each in enumerate(heard)]
    await until(world.newest, lambda _: all(heard))
    (folder / "fault").write_text("hold")
    rest = [asyncio.create_task(world.text(100 * at, 5)) for at in range(8)]
    await world.at_replicas(16)
    workers_in(folder)[0].kill()
    (folder / "fault").unlink()
    texts = await asyncio.gather(*begun)
    others = await asyncio.gather(*rest)

    assert others == whole
    ended = [at for at, text in enumerate(texts) if text != whole[at]]
    assert [texts[at] for at in ended] == [f" {100 * at + 1}!" for at in ended]
    assert len(ended) == 4, "half of the answers were at the killed replica"


async def test_the_plan_follows_grid_and_load(world: World) -> None:
    """Few parameters while the grid is dirty, more when it is clean; for load more capacity."""
    dirty = await world.plan(lambda plan: len(plan.segments) == 2)
    data = yaml.safe_load(world.file.read_text())
    data["carbon"]["zones"][ZONE] = grid(CLEAN)
    world.file.write_text(yaml.safe_dump(data))
    os.kill(world.suite.processes["carbon"], signal.SIGTERM)  # it starts again with the new grid
    clean = await world.plan(lambda plan: "8b" in variants(plan))
    loading = asyncio.create_task(world.load())
    try:
        await world.plan(
            lambda plan: (
                plan.inputs.demand_rps[MODEL] > clean.inputs.demand_rps[MODEL]
                and capacity_rps(plan) > capacity_rps(clean)
            )
        )
    finally:
        loading.cancel()

    assert variants(dirty) == {"3b"}
    assert dirty.clocks_mhz != clean.clocks_mhz


def capacity_rps(plan: plan_pb2.Plan) -> float:
    return sum(each.throughput_rps for each in plan.segments)


def variants(plan: plan_pb2.Plan) -> set[str]:
    return {each.spec.variant for each in plan.segments}

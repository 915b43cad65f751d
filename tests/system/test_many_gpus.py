"""A model of 70 billion parameters on four simulated H100: planned, metered, moved as one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
import pytest
import pytest_asyncio
import yaml

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.client import Clients, connected
from services.kit.config import Deployment
from services.kit.config.loader import load
from services.kit.net import free_port
from services.local.up.suite import Suite
from tests.support.paths import SUPPORT
from tests.support.running_suite import SHARED

pytestmark = [SHARED, pytest.mark.system, pytest.mark.timeout(180)]

T = TypeVar("T")


def node(folder: Path, name: str) -> dict[str, Any]:
    return {
        "listen": f"127.0.0.1:{free_port()}",
        "zone": "Z",
        "simulated": ["h100-80gb"] * 4,
        "allow_mig_mode": False,
        "state_dir": str(folder / name),
    }


def deployment(folder: Path) -> dict[str, Any]:
    """Two nodes of four GPUs, and a model that takes the four of one of them."""
    server = [sys.executable, str(SUPPORT / "openai_server.py"), "{port}", str(folder / "fault")]
    variant = {
        "accuracy": 80.0,
        "gpus": 4,
        "profile": {"kind": "language", "parameters_b": 70, "kv_kib_per_token": 320},
        "runtime": {"kind": "openai", "command": server, "chat": False},
    }
    listens = [f"127.0.0.1:{free_port()}" for _ in range(4)]
    source = {"kind": "static", "intensity_gco2e_per_kwh": 100}
    return {
        "version": "v1",
        "carbon": {"listen": listens[0], "zones": {"Z": {"source": source}}},
        "nodes": {name: node(folder, name) for name in ("one", "two")},
        "models": {
            "chat": {
                "slo": {"ttft_s": 2.0, "tpot_s": 0.1, "latency_s": 60},
                "demand_rps": 1,
                "variants": {"70b": variant},
            }
        },
        "planner": {
            "listen": listens[1],
            "database": str(folder / "planner.sqlite3"),
            "batch_sizes": [8, 32],
            "max_processes": 1,
            "clock_ratios": [0.6, 1.0],
            "objective": {"park_idle_gpus": True},
            "triggers": {"min_interval_s": 0.5, "settle_s": 0.2},
        },
        "router": {"listen": listens[2], "http_listen": listens[3]},
    }


class World(NamedTuple):
    """A suite, its clients and its settings."""

    clients: Clients
    settings: Deployment

    async def newest(self) -> plan_pb2.Plan:
        request = planner_pb2.GetPlanRequest()
        return (await self.clients.planner.GetPlan(request, timeout=5)).plan

    async def plan(self, wanted: Callable[[plan_pb2.Plan], bool]) -> plan_pb2.Plan:
        return await until(
            self.newest, lambda plan: plan.state == plan_pb2.PLAN_STATE_ACTIVE and wanted(plan)
        )

    async def answer(self) -> httpx.Response:
        url = f"http://{self.settings.router.http_listen}/v1/completions"
        body = {"model": "chat", "prompt": "1 2 3", "max_tokens": 4}
        async with httpx.AsyncClient() as client:
            return await client.post(url, json=body, timeout=30)


async def until(look: Callable[[], Awaitable[T]], true: Callable[[T], bool]) -> T:
    """Look again and again until it is as wanted."""
    async with asyncio.timeout(120):
        while not true(seen := await look()):  # noqa: ASYNC110 - other processes'
            await asyncio.sleep(0.1)
    return seen


@pytest_asyncio.fixture(loop_scope="module")
async def world(tmp_path: Path) -> AsyncIterator[World]:
    file = tmp_path / "cinquefoil.yaml"
    file.write_text(yaml.safe_dump(deployment(tmp_path)))
    settings = load(file)
    async with Suite.of(file, tmp_path / "logs"), connected(settings) as clients:
        yield World(clients, settings)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_70b_model_is_planned_metered_and_moved_as_one(world: World) -> None:
    """One segment of four GPUs at one clock; when its node drains, the other's four serve."""
    plan = await world.plan(lambda plan: len(plan.segments) == 1)
    (segment,) = plan.segments
    answered = await until(world.answer, lambda response: response.status_code == 200)
    order = planner_pb2.CordonNodeRequest(node=segment.node, drain=True)
    await world.clients.planner.CordonNode(order, timeout=30)
    moved = await world.plan(
        lambda plan: [each.node for each in plan.segments] not in ([], [segment.node])
    )
    again = await until(world.answer, lambda response: response.status_code == 200)

    held = [segment.spec.gpu_uuid, *segment.spec.peer_gpu_uuids]
    assert len({*held}) == 4
    assert len({plan.clocks_mhz.get(uuid, 0) for uuid in held}) == 1
    assert answered.json()["choices"][0]["text"] == " 4 5 6 7"
    assert answered.json()["usage"]["cinquefoil"]["energy_j"] > 0
    (other,) = moved.segments
    assert len({other.spec.gpu_uuid, *other.spec.peer_gpu_uuids} - {*held}) == 4
    assert again.json()["choices"][0]["text"] == " 4 5 6 7"

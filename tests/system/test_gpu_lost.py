"""A GPU that falls off the bus under load: the planner moves the load, and takes it back later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.gpuagent.simulator import SimulatedNvml
from tests.system.conftest import Running

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

NODE, TYPES = "node-0", ["a30", "a30"]


@pytest.fixture
def config(config: Path) -> Path:
    """Two small GPUs on a grid that never changes: only the GPU's fate makes plans."""
    data = yaml.safe_load(config.read_text())
    data["nodes"][NODE]["simulated"] = TYPES
    for zone in data["carbon"]["zones"].values():
        zone["source"] = {"kind": "static", "intensity_gco2e_per_kwh": 200}
    data["planner"]["strategy"] = "base"
    config.write_text(yaml.safe_dump(data))
    return config


async def test_load_moves_off_a_lost_gpu_and_back_after_its_reset(
    running: Running, tmp_path: Path
) -> None:
    """No request fails meanwhile: those on the dead workers are answered by others."""
    hardware = SimulatedNvml(
        NODE, TYPES, state_dir=tmp_path / "state" / NODE / "hardware", read_only=True
    )
    lost, kept = hardware.gpu_uuids
    await _until(running, lambda gpus: gpus == {lost, kept})
    load = asyncio.create_task(running.load(20, 20))
    await asyncio.sleep(1)

    hardware.lose(lost)
    await _until(running, lambda gpus: gpus == {kept})
    assert await _fleet_gpus(running) == {kept}
    hardware.reset(lost)
    await _until(running, lambda gpus: gpus == {lost, kept})
    report = await load

    assert not report["errors"]
    assert report["answered"] == report["sent"] > 0


async def _fleet_gpus(running: Running) -> set[str]:
    answer = await running.planner.GetFleet(planner_pb2.GetFleetRequest(), timeout=5)
    return {gpu.uuid for fleet in answer.nodes for gpu in fleet.node.gpus}


async def _until(running: Running, holds: Callable[[set[str]], bool]) -> None:
    """Wait until an active plan's GPUs are as wanted; fail after 40 s."""
    async with asyncio.timeout(40):
        while True:
            plan = (await running.planner.GetPlan(planner_pb2.GetPlanRequest(), timeout=5)).plan
            used = {segment.spec.gpu_uuid for segment in plan.segments}
            if plan.state == plan_pb2.PLAN_STATE_ACTIVE and holds(used):
                return
            await asyncio.sleep(0.1)

"""Two small GPUs under load: one falls off the bus and returns, the planner dies in a rollout."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from cinquefoil.gpuagent.v1 import gpuagent_pb2
from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import GpuAgentServiceStub
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.gpuagent.devices.fake_nvml.library import FakeNvml
from services.kit.config.loader import load
from services.kit.rpc import dial
from tests.support.gpuagent.agent_service import workers_in
from tests.support.running_suite import SHARED, Running

pytestmark = [SHARED, pytest.mark.system, pytest.mark.timeout(240)]

NODE, TYPES = "node-0", ["a30", "a30"]

Slot = tuple[str, str, int]
"""GPU, slice profile and start."""


@pytest.fixture(scope="module")
def config(config: Path) -> Path:
    """A grid that never changes: what happens here is each test's own doing."""
    data = yaml.safe_load(config.read_text())
    data["nodes"][NODE]["simulated"] = TYPES
    for zone in data["carbon"]["zones"].values():
        zone["source"] = {"kind": "static", "intensity_gco2e_per_kwh": 200}
    data["planner"] |= {"strategy": "base", "max_processes": 2}  # fewer workers to start
    config.write_text(yaml.safe_dump(data))
    return config


@pytest.fixture
def hardware(running: Running, folder: Path) -> FakeNvml:
    """The node's GPUs, seen beside its agent."""
    state = folder / "state" / NODE / "hardware"
    return FakeNvml(NODE, TYPES, state_dir=state)


async def test_load_moves_off_a_lost_gpu_and_back_after_its_reset(
    running: Running, hardware: FakeNvml
) -> None:
    """No request fails meanwhile: those on the dead workers are answered by others."""
    lost, kept = hardware.gpu_uuids
    await _until_planned(running, lambda gpus: gpus == {lost, kept})
    load = asyncio.create_task(running.load(16, 15))
    await asyncio.sleep(1)

    hardware.lose(lost)
    await _until_planned(running, lambda gpus: gpus == {kept})
    nodes = (await _fleet(running)).nodes
    assert {gpu.uuid for fleet in nodes for gpu in fleet.node.gpus} == {kept}
    hardware.reset(lost)
    await _until_planned(running, lambda gpus: gpus == {lost, kept})
    report = await load

    assert not report["errors"]
    assert report["answered"] == report["sent"] > 0


async def test_a_gpu_that_an_operator_waits_for_is_vacated_and_planned_with_again(
    running: Running, config: Path, hardware: FakeNvml
) -> None:
    """The GPU's segments move first: no request fails."""
    wanted, other = hardware.gpu_uuids
    await _until_planned(running, lambda gpus: gpus == {wanted, other})
    load_report = asyncio.create_task(running.load(8, 15))

    async with dial(load(config).nodes[NODE].dial) as channel:
        reserve = GpuAgentServiceStub(channel).Reserve(
            gpuagent_pb2.ReserveRequest(gpu_uuid=wanted, wait=True), timeout=40
        )
        waits = [list(response.waiting_for) async for response in _until_held(reserve)]
        await _until_planned(running, lambda gpus: gpus == {other})
        reserve.cancel()
    await _until_planned(running, lambda gpus: gpus == {wanted, other})
    report = await load_report

    assert waits[0]
    assert not waits[-1]
    assert not report["errors"]
    assert report["answered"] == report["sent"] > 0


async def test_a_planner_killed_half_way_through_a_rollout_ends_it(
    running: Running, folder: Path
) -> None:
    """Afterwards the fleet is exactly the plan, nothing else runs, and no request has failed."""
    first = (await _active(running, 1)).version
    await running.planner.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    await _active(running, first + 1)
    before = await _segments(running)
    load = asyncio.create_task(running.load(16, 15))
    await asyncio.sleep(1)
    request = planner_pb2.RollbackRequest(version=first)  # pins, so that its plan is the last
    target = {s.spec.segment_id for s in (await running.planner.Rollback(request)).plan.segments}

    await _until(running, lambda now: now not in (before, target))
    half = await _segments(running)
    os.kill(running.suite.processes["planner"], signal.SIGKILL)
    plan = await _active(running, first + 2)
    report = await load

    assert half not in (before, target), "the planner must have died in mid-rollout"
    assert plan.version == first + 2
    assert await _segments(running) == target
    assert await _slots(running) == {
        (s.spec.gpu_uuid, s.spec.placement.profile, s.spec.placement.start) for s in plan.segments
    }
    assert len(workers_in(folder)) == sum(segment.spec.processes for segment in plan.segments)
    assert not report["errors"]
    assert report["answered"] == report["sent"] > 0


async def _until_held(call: Any) -> AsyncIterator[gpuagent_pb2.ReserveResponse]:
    """Yield what a reservation says until it has the GPU."""
    async for response in call:
        yield response
        if not response.waiting_for:
            return


async def _until_planned(running: Running, holds: Callable[[set[str]], bool]) -> None:
    """Wait until an active plan's GPUs are as wanted; fail after 40 s."""
    async with asyncio.timeout(40):
        while True:
            plan = (await running.planner.GetPlan(planner_pb2.GetPlanRequest(), timeout=5)).plan
            used = {segment.spec.gpu_uuid for segment in plan.segments}
            if plan.state == plan_pb2.PLAN_STATE_ACTIVE and holds(used):
                return
            await asyncio.sleep(0.1)


async def _active(running: Running, version: int) -> plan_pb2.Plan:
    """Wait until a plan is active, through restarts of the planner."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await running.planner.GetPlan(planner_pb2.GetPlanRequest(), timeout=5)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.2)
                continue
            plan = answer.plan
            if plan.version >= version and plan.state == plan_pb2.PLAN_STATE_ACTIVE:
                return plan
            await asyncio.sleep(0.1)


async def _fleet(running: Running) -> planner_pb2.GetFleetResponse:
    return await running.planner.GetFleet(planner_pb2.GetFleetRequest(), timeout=5)


async def _segments(running: Running) -> set[str]:
    nodes = (await _fleet(running)).nodes
    return {each.spec.segment_id for fleet in nodes for each in fleet.node.segments}


async def _slots(running: Running) -> set[Slot]:
    nodes = (await _fleet(running)).nodes
    return {
        (gpu.uuid, each.placement.profile, each.placement.start)
        for fleet in nodes
        for gpu in fleet.node.gpus
        for each in gpu.slices
    }


async def _until(running: Running, holds: Callable[[set[str]], bool]) -> None:
    """Look at what runs until it `holds`; fail after 30 s."""
    async with asyncio.timeout(30):
        while True:
            if holds(await _segments(running)):
                return
            await asyncio.sleep(0.02)

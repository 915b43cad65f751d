"""The clock loop on real workers: it follows their latency, obeys plans and leaves no trace."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from services.gpuagent.devices.fake_nvml.core.gpu_state import GpuState
from services.gpuagent.state_store import Store
from services.kit.config import Deployment
from services.kit.state_file import read_parsed
from tests.support.gpuagent.agent_process import agent_process
from tests.support.gpuagent.agent_service import (
    GPU,
    NODE,
    PATIENCE_S,
    Agent,
    Planner,
    agent,
    deployment,
    planning,
    segment_spec,
)
from tests.support.worker.worker_process import infer_request, routed

FULL_MHZ = 1410


def looping(folder: Path, model: Path, port: int, **node: Any) -> Deployment:
    """Return a deployment whose requests have a second, and whose agent governs clocks."""
    return deployment(folder, model, f"127.0.0.1:{port}", **{"clock_loop": "miad", **node})


@asynccontextmanager
async def loaded(planner: Planner, waited_s: float) -> AsyncIterator[None]:
    """Send the segment some 200 requests a second while the block runs; each has waited so long."""
    segment = planner.segment("s-1")
    assert segment is not None

    async def send(endpoint: str) -> None:
        request = infer_request([[0, 0]]).SerializeToString()
        async with routed(endpoint) as router:
            for number in range(0, 10**6, 4):
                ids = range(number, number + 4)
                work = [pb.Work(id=each, request=request, waited_s=waited_s) for each in ids]
                await router.send(*work)
                await router.wait_for(*ids)
                await asyncio.sleep(0.01)

    task = asyncio.create_task(send(segment.endpoints[0]))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def gpu_when(running: Agent, true: Callable[[inventory_pb2.Gpu], bool]) -> inventory_pb2.Gpu:
    """Return the GPU as read from its agent once something is true of it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            node = await running.node()
            gpu = next(each for each in node.gpus if each.uuid == GPU)
            if true(gpu):
                return gpu
            await asyncio.sleep(0.1)


async def start_segment(planner: Planner) -> None:
    await planner.until(lambda: len(planner.node.gpus) > 0)
    assert (await planner.create("3g.20gb", 0)).ok
    assert (await planner.start(segment_spec())).ok


async def test_the_clock_falls_while_requests_are_early_and_rises_when_they_are_late(
    tmp_path: Path, model: Path
) -> None:
    """The time before the worker counts too: here it is all that differs.

    Load beyond the highest clock reaches the planner.
    """
    async with (
        planning() as (planner, port),
        agent(looping(tmp_path, model, port)) as running,
    ):
        await start_segment(planner)
        async with loaded(planner, waited_s=0.0):
            lowered = await gpu_when(running, lambda gpu: gpu.clock_mhz < FULL_MHZ - 100)
        assert not planner.scale_outs
        async with loaded(planner, waited_s=3.0):
            risen = await gpu_when(running, lambda gpu: gpu.clock_mhz == FULL_MHZ)
            await planner.until(lambda: len(planner.scale_outs) > 0)

    assert (lowered.locked_clock_mhz, risen.locked_clock_mhz) == (0, 0), "no plan holds it"
    report = planner.scale_outs[0]
    assert (report.gpu_uuid, list(report.models)) == (GPU, ["m"])
    assert int(report.reason.removeprefix("m takes ").split()[0]) >= 300, "percent of its objective"


async def test_a_plans_clock_is_the_loops_ceiling_and_stays_the_plans(
    tmp_path: Path, model: Path
) -> None:
    async with (
        planning() as (planner, port),
        agent(looping(tmp_path, model, port)) as running,
    ):
        await start_segment(planner)
        assert (await planner.lock_clock(990)).ok
        async with loaded(planner, waited_s=0.0):
            lowered = await gpu_when(running, lambda gpu: gpu.clock_mhz < 990)
            assert (await planner.lock_clock(990)).ok, "a repeated request changes nothing"
            assert (await planner.lock_clock(1200)).ok
            raised = await gpu_when(running, lambda gpu: gpu.clock_mhz > 990)
            assert (await planner.stop("s-1")).ok
        alone = await gpu_when(running, lambda gpu: gpu.clock_mhz == 1200)

    assert lowered.locked_clock_mhz == 990
    assert (raised.locked_clock_mhz, alone.locked_clock_mhz) == (1200, 1200)


@pytest.mark.parametrize("plan_mhz", [0, 990])
async def test_kill_dash_9_leaves_no_clock_that_no_plan_holds(
    tmp_path: Path, model: Path, plan_mhz: int
) -> None:
    """The next agent gives back what the loop took, also with the loop switched off."""
    async with planning() as (planner, port):
        settings = looping(tmp_path, model, port)
        async with agent_process(settings) as first:
            await start_segment(planner)
            assert (await planner.lock_clock(plan_mhz)).ok
            async with loaded(planner, waited_s=0.0):
                await _clock_falls_below(tmp_path, (plan_mhz or FULL_MHZ) - 50)
                first.kill()
                await first.wait()
        assert _written(tmp_path)["lowered"] == [GPU]
        planner.node.Clear()
        async with agent_process(looping(tmp_path, model, port, clock_loop="off")):
            await planner.until(lambda: len(planner.node.gpus) > 0)
            gpu = next(each for each in planner.node.gpus if each.uuid == GPU)
            assert (gpu.clock_mhz, gpu.locked_clock_mhz) == (plan_mhz or FULL_MHZ, plan_mhz)
        written = _written(tmp_path)

    assert written == {"version": 1, "held_mhz": {}, "lowered": []}
    assert _clock_mhz(tmp_path) == FULL_MHZ


async def _clock_falls_below(folder: Path, clock_mhz: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while _clock_mhz(folder) >= clock_mhz:  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.2)


def _clock_mhz(folder: Path) -> int:
    """Return the GPU's clock as the simulated hardware has it, with or without an agent."""
    state = Store(folder / NODE / "hardware" / f"{GPU}.json", GpuState).load()
    assert state is not None
    return state.locked_mhz[1] if state.locked_mhz else FULL_MHZ


def _written(folder: Path) -> dict[str, Any]:
    return read_parsed(folder / NODE / "clocks.json", dict, version=1) or {}

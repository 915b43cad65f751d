"""Metrics that an agent has of all processes on its GPUs, also of those of others."""

import asyncio
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from services.kit.config import Node
from services.kit.net import free_port
from tests.support.gpuagent.agent_service import (
    WHOLE_GPU,
    agent,
    deployment,
    placement,
    planning,
    segment_spec,
)


async def test_processes_on_a_gpu_appear_with_their_energy(tmp_path: Path, model: Path) -> None:
    """A worker's process is found by the driver alone, as any other's would be."""
    metrics = f"127.0.0.1:{free_port()}"
    spec = segment_spec(gpu_uuid=WHOLE_GPU, placement=placement("whole", 0))
    async with planning() as (planner, port), aiohttp.ClientSession() as session:
        settings = deployment(
            tmp_path, model, f"127.0.0.1:{port}", control=True, observe=True, metrics=metrics
        )
        async with agent(settings):
            await planner.until(lambda: len(planner.node.gpus) == 2)
            assert not (await planner.start(spec)).status
            while WHOLE_GPU not in (found := await observed(session, metrics)):  # noqa: ASYNC110 - a scrape
                await asyncio.sleep(0.2)
    assert found[WHOLE_GPU]["workload"]
    assert found[WHOLE_GPU]["method"] in {"none", "process_utilization"}


async def observed(session: aiohttp.ClientSession, address: str) -> dict[str, dict[str, str]]:
    """Return the labels of observed workloads by GPU."""
    async with session.get(f"http://{address}/metrics") as answer:
        page = await answer.text()
    return {
        sample.labels["gpu_uuid"]: sample.labels
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "cinquefoil_observed_energy_joules_total"
    }


def test_agents_of_real_gpus_without_control_observe() -> None:
    """Simulated GPUs and those under control do so on request only; cores never."""
    assert Node(zone="Z").observed
    assert not Node(zone="Z", control=True).observed
    assert not Node(zone="Z", simulated=("t4",)).observed
    assert Node(zone="Z", simulated=("t4",), observe=True).observed
    assert not Node(zone="Z", observe=False).observed
    assert not Node(zone="Z", maker="amd").observed

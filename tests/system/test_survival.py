"""A model that must survive the loss of a GPU: half of its workers fall silent, as if cut off."""

import asyncio
import signal
from pathlib import Path

import pytest
import yaml

from cinquefoil.planner.v1.planner_pb2 import GetPlanRequest
from services.kit.config.loader import load
from tests.support.gpuagent.agent_service import workers_in
from tests.support.running_suite import SHARED, Running

pytestmark = [SHARED, pytest.mark.system, pytest.mark.timeout(240)]

NODE = "node-0"
RATE_RPS = 50


@pytest.fixture(scope="module")
def config(config: Path) -> Path:
    """Two GPUs, a grid that never changes, and a planner that leaves the rest to the router."""
    data = yaml.safe_load(config.read_text())
    data["nodes"][NODE]["simulated"] = ["a30", "a30"]
    for zone in data["carbon"]["zones"].values():
        zone["source"] = {"kind": "static", "intensity_gco2e_per_kwh": 200}
    data["models"]["digits"] |= {"survive": 1.0, "demand_rps": RATE_RPS}
    data["models"]["digits"]["slo"]["latency_s"] = 1.0  # what a busy machine adds is far less
    data["planner"]["triggers"]["min_interval_s"] = 60.0
    config.write_text(yaml.safe_dump(data))
    return config


async def test_no_answer_takes_twice_the_objective_when_a_gpu_is_cut_off(
    running: Running, config: Path, folder: Path
) -> None:
    """Both GPUs serve before; the stopped workers keep their connections, and say nothing."""
    slo_s = load(config).models["digits"].slo.latency_s
    plan = (await running.planner.GetPlan(GetPlanRequest(), timeout=5)).plan
    assert len({each.spec.gpu_uuid for each in plan.segments}) == 2
    assert all(each.share > 0.1 for each in plan.segments)
    cut = plan.segments[0].spec.gpu_uuid
    names = {each.spec.segment_id for each in plan.segments if each.spec.gpu_uuid == cut}
    workers = [
        worker
        for worker in workers_in(folder)
        if any(name in worker.cmdline()[-1] for name in names)
    ]
    assert workers

    sent = asyncio.create_task(running.load(12, RATE_RPS))
    await asyncio.sleep(4)
    for worker in workers:
        worker.send_signal(signal.SIGSTOP)
    try:
        report = await sent
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGCONT)

    assert report["answered"] == report["sent"], report["errors"]
    assert not [each for each in report["latencies_s"] if each > 2 * slo_s]

"""InfAdapter's problem live on this machine's cores: no GPU, nothing simulated."""

import asyncio
import os
from pathlib import Path

import pytest
import yaml

from cinquefoil.gpuagent.v1 import gpuagent_pb2
from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import GpuAgentServiceStub
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.kit.config.loader import load
from services.kit.net import free_port
from services.kit.rpc import dial
from services.local.demo import model_family
from tests.support.paths import ROOT
from tests.support.running_suite import SHARED, Running

CORES = 2

pytestmark = [
    SHARED,
    pytest.mark.system,
    pytest.mark.timeout(240),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < CORES, reason=f"needs {CORES} cores"),
]


@pytest.fixture(scope="module")
def config(folder: Path, convnets: Path) -> Path:
    """The example, on free ports, so wary of sharing its cores that the load can stay small."""
    data = yaml.safe_load((ROOT / "examples/cpu/cinquefoil.yaml").read_text())
    for section in (data["carbon"], data["planner"], data["router"], data["nodes"]["cpu-0"]):
        section["listen"] = f"127.0.0.1:{free_port()}"
    data["router"]["http_listen"] = ""
    data["nodes"]["cpu-0"] |= {"state_dir": str(folder / "state"), "orphan_timeout_s": 30.0}
    data["planner"]["database"] = str(folder / "planner.sqlite3")
    data["planner"]["triggers"] = {"min_interval_s": 1.0, "settle_s": 0.2}
    data["planner"]["objective"]["max_utilisation"] = 0.05
    digits = data["models"]["digits"]
    digits |= {"demand_rps": 1, "slo": {"latency_s": 2.0}}
    accuracy = model_family.read_accuracy(convnets)
    assert accuracy is not None
    for name, variant in digits["variants"].items():
        assert variant["accuracy"] == pytest.approx(accuracy[name], abs=0.002)
        variant["file"] = str(model_family.path(convnets, name))
    path = folder / "cinquefoil.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


async def test_a_rising_load_changes_variants_and_cores(running: Running, config: Path) -> None:
    """Every request is answered meanwhile, with its energy and the method of its measurement."""
    (node,) = load(config).nodes.values()
    async with dial(node.dial) as channel:
        agent = GpuAgentServiceStub(channel)
        calm = await plan_of(running)
        assert used(calm) == [("conv-384", "1c")]
        (cpu,) = (await agent.GetNode(gpuagent_pb2.GetNodeRequest())).node.gpus
        assert (cpu.type.name, cpu.type.core_gmacs_per_s > 0) == (f"cpu-{CORES}", True)

        load_now = asyncio.create_task(running.load(8, 15))
        busy = await other_plan(running, calm)
        report = await load_now

        (account,) = (await agent.GetEnergy(gpuagent_pb2.GetEnergyRequest())).gpus

    assert report["answered"] == report["sent"] > 100, report["errors"]
    assert not report["errors"]
    assert report["energy_j"] > 0
    assert account.method in {"rapl", "model"}
    assert account.total_j == pytest.approx(
        account.idle_j + account.unattributed_j + sum(s.active_j for s in account.segments)
    )
    assert 0.9 < busy.prediction.accuracy["digits"] <= calm.prediction.accuracy["digits"]


def used(plan: plan_pb2.Plan) -> list[tuple[str, str]]:
    """Return the variants of a plan with their slices."""
    return sorted((s.spec.variant, s.spec.placement.profile) for s in plan.segments)


async def plan_of(running: Running) -> plan_pb2.Plan:
    """Return the newest plan."""
    answer = await running.planner.GetPlan(planner_pb2.GetPlanRequest(), timeout=5)
    return answer.plan


async def other_plan(running: Running, before: plan_pb2.Plan) -> plan_pb2.Plan:
    """Return the first plan with other variants or slices than `before`."""
    for _ in range(100):
        if used(plan := await plan_of(running)) != used(before):
            return plan
        await asyncio.sleep(0.2)
    raise AssertionError("the load must have changed variants or cores")

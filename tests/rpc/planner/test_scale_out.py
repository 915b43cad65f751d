"""An agent whose clock can rise no more requests more GPUs of the planner, and gets them."""

import asyncio
from pathlib import Path

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import planner_pb2 as pb
from services.kit import config
from tests.support.fake_agent import Agent, Grid, active, deployment, living, planner

WHY = "digits takes 97 % of its objective since 5 s on GPU-1"


def throughput(seen: pb.WatchResponse) -> int:
    """Return the number of requests that the plan's segments hold at a time."""
    return sum(each.spec.batch_size * each.spec.processes for each in seen.plan.segments)


async def insist(agent: Agent) -> None:
    """Send a request for more GPUs again and again, as agents do while it holds."""
    request = inventory_pb2.ScaleOut(gpu_uuid="GPU-1", models=["digits"], reason=WHY)
    while True:
        agent.said.put_nowait(pb.JoinRequest(scale_out=[request]))
        await asyncio.sleep(0.05)


async def test_a_gpu_without_slack_brings_a_plan_that_provides_for_more(
    tmp_path: Path, grid: Grid
) -> None:
    """mu-Serve's scale-out signal: the maximum clock and no slack; the reason is the agent's.

    More is provided for each time, until what was planned does not hold it.
    """
    thrifty = config.Objective(
        carbon_weight=1.0, park_idle_gpus=True, switch_price=0.0, layout_price=0.0
    )
    settings = deployment(tmp_path, grid.port, strategy="exact", objective=thrifty)
    busy = settings.models["digits"].model_copy(update={"demand_rps": 4200.0})
    settings = settings.model_copy(update={"models": {"digits": busy}})
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(settings) as stub, living(agent, stub):
        first = await active(stub, 1)
        insisting = asyncio.create_task(insist(agent), name="agent.insist")
        second = await active(stub, first.plan.version + 1)
        insisting.cancel()

    assert second.plan.reason.startswith(f"sla: {WHY}; provides for ")
    assert throughput(second) > throughput(first)

"""Wrong profiles that agents report, as the planner shows them."""

from collections.abc import Callable

from cinquefoil.planner.v1 import planner_pb2 as pb
from tests.support.fake_agent import Suite


async def drifts_once(suite: Suite, true: Callable[[pb.FleetNode], bool]) -> list[pb.ProfileDrift]:
    """Poll until something is true of the only node; return its wrong profiles."""
    while True:
        node = (await suite.stub.GetFleet(pb.GetFleetRequest())).nodes[0]
        if true(node):
            return list(node.drifts)


async def test_wrong_profiles_stay_until_the_agent_says_otherwise(suite: Suite) -> None:
    """Reports of other things leave them alone; an empty list is the good news."""
    drift = pb.ProfileDrift(model="m", variant="v", latency_ratio=1.5, energy_ratio=1.1)
    suite.agent.said.put_nowait(pb.JoinRequest(drifts=pb.ProfileDrifts(drifts=[drift])))
    first = await drifts_once(suite, lambda node: bool(node.drifts))
    suite.agent.said.put_nowait(pb.JoinRequest(node=suite.agent.report()))
    energy = pb.JoinRequest()
    energy.energy.add(gpu_uuid="GPU-1", total_j=5.0)
    suite.agent.said.put_nowait(energy)
    second = await drifts_once(
        suite, lambda node: bool(node.energy and node.energy[0].total_j == 5.0)
    )
    suite.agent.said.put_nowait(pb.JoinRequest(drifts=pb.ProfileDrifts()))
    last = await drifts_once(suite, lambda node: not node.drifts)

    assert first == second == [drift]
    assert last == []

"""An agent that ends: its segments move to other nodes first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.fake_agent import Agent, active, deployment, living, planner
from tests.support.planner.planner_client import Router, known_routers
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.fake_agent import Grid


@pytest.mark.parametrize("restarts", [False, True], ids=["router", "router-restarts"])
async def test_an_agent_that_leaves_is_released_when_its_segments_serve_elsewhere(
    tmp_path: Path, grid: Grid, restarts: bool
) -> None:
    """Make before break: the other node serves first, also where the only router is to return."""
    settings = deployment(tmp_path, grid.port, ("node-a", "node-b"))
    agents = {name: Agent(name, (f"GPU-{name}",)) for name in settings.nodes}
    async with (
        planner(settings) as stub,
        living(agents["node-a"], stub),
        living(agents["node-b"], stub),
    ):
        first = (await active(stub, 1)).plan
        serving, other = agents[first.segments[0].node], agents["node-a"]
        if serving is other:
            other = agents["node-b"]
        router = Router(stub)
        router.say(1)
        await until(lambda: bool(known_routers(stub)))
        if restarts:
            router.call.cancel()
            await until(lambda: not known_routers(stub))
        serving.leaving = True
        serving.say()
        second = (await active(stub, 2)).plan
        serving.say()
        await until(serving.released.is_set)
        router.call.cancel()

    assert {segment.node for segment in second.segments} == {other.node}
    assert not serving.segments


@pytest.mark.parametrize("nodes", [("node-a",), ("node-a", "node-b")])
async def test_an_agent_whose_segments_serve_no_model_is_released_at_once(
    tmp_path: Path, grid: Grid, nodes: tuple[str, ...]
) -> None:
    """There is no other node, or no router: nothing is moved for its sake."""
    settings = deployment(tmp_path, grid.port, nodes)
    agent = Agent("node-a", ("GPU-a",))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        agent.leaving = True
        agent.say()
        await until(agent.released.is_set)

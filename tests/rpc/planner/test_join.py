"""Agents that the planner believes, and those it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import grpc
import pytest

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit.net import free_port
from services.kit.rpc import dial
from services.planner import servicer
from services.planner.adapters.agent_sessions import AgentSession, AgentSessions
from services.planner.control.pacing import Turns
from tests.support.certificates import issued
from tests.support.fake_agent import Agent, carbon, deployment, living, planner, reconciler
from tests.support.waiting import until as eventually

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub
    from tests.support.fake_agent import Grid


def joining(node: inventory_pb2.Node) -> AsyncIterator[planner_pb2.JoinRequest]:
    """Say one report, and stay."""

    async def said() -> AsyncIterator[planner_pb2.JoinRequest]:
        yield planner_pb2.JoinRequest(node=node)
        await asyncio.Event().wait()

    return said()


async def refused(stub: PlannerServiceAsyncStub, node: inventory_pb2.Node) -> grpc.aio.AioRpcError:
    """Return how the planner ends the stream of an agent that reports `node`."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub.Join(joining(node), timeout=20):
            pass
    return caught.value


async def test_workers_that_are_elsewhere_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    """A forged endpoint would have routers send clients' requests to it."""
    async with carbon() as grid, planner(deployment(tmp_path, grid.port)) as stub:
        agent = Agent("node-a", ("GPU-a",))
        node = agent.report()
        node.segments.add(
            spec=inventory_pb2.SegmentSpec(segment_id="s-1", gpu_uuid=agent.gpus[0]),
            endpoints=["evil.example:443"],
        )
        error = await refused(stub, node)
        fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "nodes.node-a.worker_host is 127.0.0.1" in str(error.details())
    assert not any(each.connected for each in fleet.nodes)


async def test_an_agent_does_not_use_up_the_planner_s_terms(tmp_path: Path) -> None:
    """A term that no restored database can be behind is refused, and ours stays."""
    async with carbon() as grid, planner(deployment(tmp_path, grid.port)) as stub:
        before = (await stub.GetFleet(planner_pb2.GetFleetRequest())).leader.term

        async def said() -> AsyncIterator[planner_pb2.JoinRequest]:
            yield planner_pb2.JoinRequest(node=Agent("node-a", ("GPU-a",)).report(), term=2**62)
            await asyncio.Event().wait()

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Join(said(), timeout=20):
                pass
        after = await stub.GetFleet(planner_pb2.GetFleetRequest())

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith("term: must be at most")
    assert after.leader.term == before
    assert not any(each.connected for each in after.nodes)


async def test_agents_that_join_at_once_do_so_a_few_in_a_turn_of_the_loop(
    tmp_path: Path, grid: Grid
) -> None:
    """A thousand in one turn take seconds, in which the planner could not renew its lease."""
    agents = [Agent(f"node-{index}", (f"GPU-{index}",)) for index in range(5)]
    settings = deployment(tmp_path, grid.port, tuple(each.node for each in agents))
    turn, joined_in = 0, []
    join = AgentSessions.join

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def noted(*arguments: Any) -> AgentSession:
        joined_in.append(turn)
        return join(*arguments)

    with (
        patch.object(servicer, "Turns", lambda: Turns(most=1)),
        patch.object(AgentSessions, "join", noted),
    ):
        async with planner(settings) as stub, AsyncExitStack() as stack:
            counting = asyncio.create_task(count())
            for each in agents:
                await stack.enter_async_context(living(each, stub))
            await eventually(lambda: len(joined_in) == len(agents))
            counting.cancel()

    assert len(set(joined_in)) == len(agents)


async def test_a_node_that_joins_again_and_again_must_wait(tmp_path: Path) -> None:
    async with carbon() as grid, planner(deployment(tmp_path, grid.port)) as stub:
        codes = []
        for _ in range(11):
            call = stub.Join(joining(Agent("node-a", ("GPU-a",)).report()), timeout=0.3)
            codes.append(await call.code())

    assert codes[-1] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert grpc.StatusCode.RESOURCE_EXHAUSTED not in codes[:-1]


async def test_no_caller_joins_as_the_agent_of_another_node(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Whatever certificate of the authority a peer has, the joined agent and its streams stay."""
    bearers = ("agent/node-b", "router", "client/app", "operator/ada")
    tls = issued(tmp_path, "planner", "agent/node-a", *bearers)
    port = free_port()
    secured = deployment(tmp_path, free_port(), listen=f"127.0.0.1:{port}")
    async with (
        planner(secured.model_copy(update={"tls": tls})) as operator,
        dial(f"127.0.0.1:{port}", tls.of("agent", "node-a")) as mine,
        living(Agent("node-a", ("GPU-a",)), PlannerServiceStub(mine)) as alive,
    ):
        await _joined(operator)
        for bearer in bearers:
            role, _, name = bearer.partition("/")
            with subtests.test(bearer):
                async with dial(f"127.0.0.1:{port}", tls.of(role, name)) as theirs:
                    report = Agent("node-a", ("GPU-a",)).report()
                    error = await refused(PlannerServiceStub(theirs), report)
                await _joined(operator)
                assert not alive.done()
                assert error.code() is grpc.StatusCode.PERMISSION_DENIED


async def _joined(operator: PlannerServiceAsyncStub) -> None:
    await reconciler(operator)._state.changed.until(
        lambda: reconciler(operator)._state.fleet.connected("node-a"), 20
    )
    fleet = await operator.GetFleet(planner_pb2.GetFleetRequest())
    assert fleet.nodes[0].connected

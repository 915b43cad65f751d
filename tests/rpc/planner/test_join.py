"""Which agents the planner believes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit.net import free_port
from services.kit.rpc import dial
from tests.support.certificates import issued
from tests.support.fake_agent import Agent, carbon, deployment, living, planner, reconciler

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub


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


async def test_a_node_that_joins_again_and_again_is_told_to_wait(tmp_path: Path) -> None:
    async with carbon() as grid, planner(deployment(tmp_path, grid.port)) as stub:
        codes = []
        for _ in range(11):
            call = stub.Join(joining(Agent("node-a", ("GPU-a",)).report()), timeout=0.3)
            codes.append(await call.code())

    assert codes[-1] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert grpc.StatusCode.RESOURCE_EXHAUSTED not in codes[:-1]


@pytest.mark.parametrize("bearer", ["agent/node-b", "router", "client/app", "operator/ada"])
async def test_nobody_joins_as_the_agent_of_another_node(tmp_path: Path, bearer: str) -> None:
    """Whatever certificate of the authority a peer has, the joined agent and its streams stay."""
    tls = issued(tmp_path, "planner", "operator/ada", "agent/node-a", bearer)
    role, _, name = bearer.partition("/")
    port = free_port()
    secured = deployment(tmp_path, free_port(), listen=f"127.0.0.1:{port}")
    async with (
        planner(secured.model_copy(update={"tls": tls})) as operator,
        dial(f"127.0.0.1:{port}", tls.of("agent", "node-a")) as mine,
        dial(f"127.0.0.1:{port}", tls.of(role, name)) as theirs,
        living(Agent("node-a", ("GPU-a",)), PlannerServiceStub(mine)) as alive,
    ):
        await _joined(operator)
        error = await refused(PlannerServiceStub(theirs), Agent("node-a", ("GPU-a",)).report())
        await _joined(operator)
        assert not alive.done()

    assert error.code() is grpc.StatusCode.PERMISSION_DENIED


async def _joined(operator: PlannerServiceAsyncStub) -> None:
    await reconciler(operator)._state.changed.until(
        lambda: reconciler(operator)._state.fleet.connected("node-a"), 20
    )
    fleet = await operator.GetFleet(planner_pb2.GetFleetRequest())
    assert fleet.nodes[0].connected

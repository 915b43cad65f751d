"""Talking to a planner as its peers and operators do, and waiting for what follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import TYPE_CHECKING, cast

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.planner.control.live_environment import LiveEnvironment
from tests.support.fake_agent import Agent, reconciler
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub


def shares(routing: plan_pb2.RoutingTable) -> float:
    return sum(instance.share for instance in routing.models[0].instances)


def variants(routing: plan_pb2.RoutingTable) -> set[str]:
    return {instance.variant for instance in routing.models[0].instances}


def in_term(term: int, routing: plan_pb2.RoutingTable) -> plan_pb2.RoutingTable:
    """Return a routing table as the planner of another term sends it."""
    found = plan_pb2.RoutingTable.FromString(routing.SerializeToString())
    found.term = term
    return found


async def plan(stub: PlannerServiceAsyncStub, version: int = 0) -> plan_pb2.Plan:
    return (await stub.GetPlan(planner_pb2.GetPlanRequest(version=version))).plan


class Router:
    """A router that sends what a test sets."""

    def __init__(self, stub: PlannerServiceAsyncStub, router_id: str = "r-1") -> None:
        self._router_id = router_id
        self._said: asyncio.Queue[planner_pb2.ReportLoadRequest] = asyncio.Queue()
        self.call = stub.ReportLoad(self._words())

    def say(
        self,
        revision: int,
        arrivals: int = 0,
        window_s: float = 1.0,
        *,
        late: int = 0,
        variant: str = "large",
        latency_s: float = 0.125,
        unreachable: Collection[str] = (),
    ) -> None:
        report = planner_pb2.ReportLoadRequest(router_id=self._router_id, routing_revision=revision)
        report.window.FromMilliseconds(int(window_s * 1000))
        report.unreachable_segments.extend(unreachable)
        load = report.models.add(model="digits", arrivals=arrivals, answered=arrivals, late=late)
        load.latency_s.update({"95": latency_s})
        load.answered_by_variant.update({variant: arrivals})
        self._said.put_nowait(report)

    async def _words(self) -> AsyncIterator[planner_pb2.ReportLoadRequest]:
        while True:
            yield await self._said.get()


async def quiet(stub: PlannerServiceAsyncStub, *agents: Agent) -> None:
    """Wait until nothing is left to happen.

    What agents have to say is said, has arrived, and the planner has looked at all of it and
    neither does anything nor waits for a time to come.
    """
    cycle = reconciler(stub).cycle
    for _ in range(3):
        await until(lambda: all(agent.said.empty() for agent in agents))
        await stub.GetFleet(planner_pb2.GetFleetRequest())
        await until(lambda: cycle.idle)


async def ordered(stub: PlannerServiceAsyncStub) -> None:
    """Wait until an operator's order waits for its turn."""
    await until(lambda: len(reconciler(stub)._orders) > 0)


async def abandoned(stub: PlannerServiceAsyncStub) -> None:
    """Wait until the planner knows that no caller waits for the answers to its orders any more."""
    waiting = reconciler(stub)._orders._waiting
    await until(lambda: all(answer.done() for _, answer in waiting))


def known_routers(stub: PlannerServiceAsyncStub) -> set[str]:
    """Return the routers whose reports the planner has."""
    environment = reconciler(stub).cycle._environment
    assert isinstance(environment, LiveEnvironment)
    return {link.router_id for link in environment._routers._links}


async def connected(stub: PlannerServiceAsyncStub, node: str) -> None:
    """Wait until the planner has a node's report."""

    async def holds() -> bool:
        fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
        return any(each.connected and each.node.name == node for each in fleet.nodes)

    await until(holds)


async def fleet_demand(stub: PlannerServiceAsyncStub, demand_rps: float) -> bool:
    fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
    return abs(fleet.demand_rps["digits"] - demand_rps) < 1.0


async def fleet_provides(stub: PlannerServiceAsyncStub, least_rps: float) -> bool:
    fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
    return bool(fleet.demand_rps["digits"] > least_rps - 1.0)


async def fleet_energy(stub: PlannerServiceAsyncStub, energy_j: float) -> bool:
    fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
    return abs(fleet.energy_j - energy_j) < 1.0


async def fleet_intensity(stub: PlannerServiceAsyncStub, intensity: float) -> bool:
    fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
    return fleet.intensity_gco2e_per_kwh == {"Z": intensity}


async def metered(agent: Agent, stub: PlannerServiceAsyncStub, energy_j: float) -> bool:
    """Report the meters again, as agents do twice a second, and look."""
    agent.meter(0.0)
    return await fleet_energy(stub, energy_j)


async def refused(agent: asyncio.Task[None]) -> grpc.aio.AioRpcError:
    """Return the error that ended an agent's stream."""
    with pytest.raises(ExceptionGroup) as caught:
        await agent
    (error,) = caught.value.exceptions
    assert isinstance(error, grpc.aio.AioRpcError)
    return error


def violated(error: grpc.aio.AioRpcError) -> str:
    """Return the field that google.rpc.BadRequest names."""
    status = rpc_status.from_call(cast("grpc.Call", error))
    assert status is not None
    for detail in status.details:
        request = error_details_pb2.BadRequest()
        if detail.Unpack(request):
            return str(request.field_violations[0].field)
    raise AssertionError("no field named")

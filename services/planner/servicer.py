"""PlannerService: wire <-> core."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import planner_pb2 as pb
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceServicer
from services.kit.deployment import Deployment
from services.kit.errors import InvalidArgument
from services.planner.agents import Agents, Session
from services.planner.announcer import Announcer
from services.planner.books import Books
from services.planner.convert import load_from, plan_to, routing_to
from services.planner.decide import STRATEGIES
from services.planner.paging import page_size, read_token, write_token
from services.planner.routers import Link, Routers
from services.planner.store import Store
from services.planner.streams import until
from services.planner.world import World


class PlannerServicer(PlannerServiceServicer):
    """Answers subscribers, operators, agents and routers."""

    def __init__(  # noqa: PLR0913 - one argument per collaborator, all made in app.py
        self,
        deployment: Deployment,
        *,
        world: World,
        store: Store,
        books: Books,
        announcer: Announcer,
        agents: Agents,
        routers: Routers,
    ) -> None:
        self._nodes = deployment.nodes
        self._percentiles: Mapping[str, float] = {
            name: model.slo.percentile for name, model in deployment.models.items()
        }
        self._world = world
        self._store = store
        self._books = books
        self._announcer = announcer
        self._agents = agents
        self._routers = routers
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """End every stream."""
        self._draining.set()
        self._announcer.board.close()
        self._agents.close()

    async def Watch(
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.WatchResponse]:
        """Send the newest plan and the routing table, now and after each change."""
        async for said in self._announcer.board.follow():
            plan = None if said.plan is None else plan_to(said.plan)
            yield pb.WatchResponse(plan=plan, routing=routing_to(said.routing))

    async def GetPlan(self, request: pb.GetPlanRequest, context: Any) -> pb.GetPlanResponse:
        """Return one plan."""
        return pb.GetPlanResponse(plan=plan_to(await self._store.plan(request.version)))

    async def ListPlans(self, request: pb.ListPlansRequest, context: Any) -> pb.ListPlansResponse:
        """Return a page of plans, newest first."""
        size, below = page_size(request.page_size), read_token(request.page_token)
        found = await self._store.newest_first(size + 1, below)  # one more: is there a next page?
        return pb.ListPlansResponse(
            plans=[plan_to(plan) for plan in found[:size]],
            next_page_token=write_token(found[size - 1].version) if len(found) > size else "",
        )

    async def GetFleet(self, request: pb.GetFleetRequest, context: Any) -> pb.GetFleetResponse:
        """Return nodes, energy, intensity and demand as they are now."""
        return pb.GetFleetResponse(
            nodes=[self._fleet_node(name) for name in self._nodes],
            energy_j=self._books.total.energy_j,
            carbon_gco2e=self._books.total.carbon_gco2e,
            intensity_gco2e_per_kwh=self._world.intensity_gco2e_per_kwh,
            demand_rps=self._world.demand.rates_rps(),
        )

    async def SetObjective(
        self, request: pb.SetObjectiveRequest, context: Any
    ) -> pb.SetObjectiveResponse:
        """Change the objective; the reconciler plans anew."""
        weight = request.carbon_weight if request.HasField("carbon_weight") else None
        _check_aim(weight, request.strategy)
        self._world.aim(weight, request.strategy)
        return pb.SetObjectiveResponse()

    async def Join(
        self, request_iterator: AsyncIterator[pb.JoinRequest], context: Any
    ) -> AsyncIterator[pb.JoinResponse]:
        """Take an agent's reports, send it steps."""
        session = self._agents.join(await _first(request_iterator))
        reading = asyncio.create_task(self._read(session, request_iterator), name="planner.join")
        try:
            async for step in session.steps():
                yield pb.JoinResponse(step=step)
            if reading.done():
                reading.result()  # what ended the reports ends the call
        finally:
            self._agents.leave(session)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def ReportLoad(
        self, request_iterator: AsyncIterator[pb.ReportLoadRequest], context: Any
    ) -> pb.ReportLoadResponse:
        """Take a router's reports."""
        link = Link()
        try:
            await until(self._draining, self._read_load(link, request_iterator))
        finally:
            self._routers.leave(link)
        return pb.ReportLoadResponse()

    async def _read(self, session: Session, requests: AsyncIterator[pb.JoinRequest]) -> None:
        try:
            async for request in requests:
                self._agents.take(session, request)
        finally:
            session.close()

    async def _read_load(self, link: Link, requests: AsyncIterator[pb.ReportLoadRequest]) -> None:
        async for request in requests:
            report = load_from(request, self._percentiles)
            self._routers.report(link, report)
            self._books.answered(report.answered, report.latency_s)

    def _fleet_node(self, name: str) -> pb.FleetNode:
        report = self._agents.reports.get(name)
        if report is None:
            node = inventory_pb2.Node(name=name, zone=self._nodes[name].zone)
            return pb.FleetNode(node=node)
        connected = self._world.fleet.connected(name)
        return pb.FleetNode(node=report.node, connected=connected, energy=report.energy)


def _check_aim(carbon_weight: float | None, strategy: str) -> None:
    if carbon_weight is not None and not 0 <= carbon_weight <= 1:
        raise InvalidArgument(
            f"carbon_weight: must be 0..1, got {carbon_weight:g}", field="carbon_weight"
        )
    if strategy and strategy not in STRATEGIES:
        raise InvalidArgument(
            f"strategy: must be one of {', '.join(sorted(STRATEGIES))}, got {strategy!r}",
            field="strategy",
        )


async def _first(requests: AsyncIterator[pb.JoinRequest]) -> pb.JoinRequest:
    async for request in requests:
        return request
    raise InvalidArgument("node: required in the first request, which never came", field="node")

"""PlannerService: conversion between messages and the planner's objects."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, cast

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import explanation_pb2, grid_event_pb2, plan_pb2, waiting_pb2
from cinquefoil.planner.v1 import planner_pb2 as pb
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceServicer
from cinquefoil.planner.v1.records import GridEvent, PlanState, WhatIf
from services.kit.conditions import described
from services.kit.errors import InvalidArgument, NotFound, Unavailable
from services.kit.net import host_of
from services.kit.rpc import caller
from services.kit.rpc.condition_messages import condition_messages
from services.kit.rpc.record_mapping import from_message, to_message
from services.kit.segment import plain
from services.planner.adapters.agent_sessions import AgentSession
from services.planner.adapters.router_sessions import RouterSession
from services.planner.adapters.wire.announcements import AnnouncementEncoder
from services.planner.adapters.wire.convert import (
    load_from,
    values_from,
)
from services.planner.adapters.wire.convert_energy import grouping_from, instant, messages
from services.planner.adapters.wire.convert_waiting import releases_to, waiting_from
from services.planner.adapters.wire.history import history_message
from services.planner.adapters.wire.paging import page_size, read_token, write_token
from services.planner.adapters.wire.streams import until, without_gaps
from services.planner.assembly import Planner
from services.planner.control.fleet_sites import cost_eur_per_h
from services.planner.control.pacing import Turns
from services.planner.core.decide import check_strategy
from services.planner.core.known_nodes import JoinedNode
from services.planner.core.maintenance import Freeze

_LONGEST_REASON = 500


class PlannerServicer(PlannerServiceServicer):
    """Answers subscribers, operators, agents and routers.

    Attributes:
        planner: The leading planner's objects; None: this planner does not lead yet, and refuses
            clients.
    """

    def __init__(self) -> None:
        self.planner: Planner | None = None
        self._draining = asyncio.Event()
        self._joining = Turns()
        self._encoder = AnnouncementEncoder(lambda: self._planner.changes.now.file.digest)

    @property
    def _planner(self) -> Planner:
        """The leading planner's objects.

        Raises:
            Unavailable: This planner does not lead.
        """
        if self.planner is None:
            raise Unavailable("this planner does not lead, or not yet", reason="STANDS_BY")
        return self.planner

    @property
    def led(self) -> Planner:
        """The leading planner's objects; raises Unavailable where this one does not lead."""
        return self._planner

    def drain(self) -> None:
        """End every stream."""
        self._draining.set()
        if self.planner is not None:
            self.planner.publisher.board.close()
            self.planner.agents.close()

    async def Watch(
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.WatchResponse]:
        """Send the newest plan and the routing table, now and after each change."""
        announced = self._planner.publisher.board.follow()
        if request.routing_only:
            if request.HasField("after_version"):
                raise InvalidArgument.at("after_version", "must be unset with routing_only")
            feed = self._encoder.for_router()
            async for said in announced:
                if encoded := feed(said):
                    yield cast(pb.WatchResponse, encoded)
            return
        if request.HasField("after_version"):
            await self._check_seen(request.after_version)
            announced = without_gaps(announced, self._planner.store.after, request.after_version)
        async for said in announced:
            yield cast(pb.WatchResponse, self._encoder.whole(said))

    async def GetPlan(self, request: pb.GetPlanRequest, context: Any) -> pb.GetPlanResponse:
        """Return one plan."""
        with self._reasons_of_no_plan():
            plan = await self._planner.store.plan(request.version)
        return pb.GetPlanResponse(plan=to_message(plan, plan_pb2.Plan))

    @contextmanager
    def _reasons_of_no_plan(self) -> Iterator[None]:
        """Add to an error the reasons why there is no plan at all, and what shows the first."""
        try:
            yield
        except NotFound as error:
            if self._planner.publisher.board.value.plan is not None:
                raise
            conditions = self._planner.publisher.conditions()
            why = "".join(f"; {described(each)}" for each in conditions)
            raise error.because(why or "; `cinquefoil plan watch` shows the first one") from error

    async def ListPlans(self, request: pb.ListPlansRequest, context: Any) -> pb.ListPlansResponse:
        """Return a page of plans, newest first."""
        size, below = page_size(request.page_size), read_token(request.page_token)
        pinned = self._planner.reconciler.standing.pinned
        one_more = size + 1  # to see whether there is a next page
        found = await self._planner.store.newest_first(one_more, below)
        return pb.ListPlansResponse(
            plans=[to_message(plan, plan_pb2.Plan) for plan in found[:size]],
            next_page_token=write_token(found[size - 1].version) if len(found) > size else "",
            pinned_version=pinned.version if pinned else 0,
            pinned_by=pinned.principal if pinned else "",
        )

    async def DryRun(self, request: pb.DryRunRequest, context: Any) -> pb.DryRunResponse:
        """Return the decision under other circumstances, with its explanation."""
        changes = from_message(request.what_if, WhatIf)
        answer = await self._planner.queries.dry_run(changes, brief=request.brief)
        return to_message(answer, pb.DryRunResponse)

    async def Sweep(
        self, request: pb.SweepRequest, context: Any
    ) -> AsyncIterator[pb.SweepResponse]:
        """Send the prediction for each weight of carbon."""
        changes = from_message(request.what_if, WhatIf)
        async for weight, outlook in self._planner.queries.sweep(changes, request.carbon_weights):
            yield pb.SweepResponse(
                carbon_weight=weight, outlook=to_message(outlook, plan_pb2.Prediction)
            )

    async def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainResponse:
        """Return the explanation of a plan."""
        with self._reasons_of_no_plan():
            found = await self._planner.queries.explain(request.version)
        newest = self._planner.publisher.board.value.plan
        is_newest = not request.version or (newest and newest.version == request.version)
        releases = self._planner.waiting.work.releases.values() if is_newest else ()
        return pb.ExplainResponse(
            explanation=to_message(found, explanation_pb2.Explanation),
            releases=[to_message(each, waiting_pb2.WaitingRelease) for each in releases],
        )

    async def Diff(self, request: pb.DiffRequest, context: Any) -> pb.DiffResponse:
        """Return the difference of two plans."""
        with self._reasons_of_no_plan():
            found = await self._planner.queries.diff(request.from_version, request.to_version)
        return pb.DiffResponse(diff=to_message(found, explanation_pb2.PlanDiff))

    async def Apply(self, request: pb.ApplyRequest, context: Any) -> pb.ApplyResponse:
        """Carry out the plan of a dry run."""
        plan = await self._planner.queries.apply(request.proposal_id, caller().name)
        return pb.ApplyResponse(plan=to_message(plan, plan_pb2.Plan))

    async def Pin(self, request: pb.PinRequest, context: Any) -> pb.PinResponse:
        """Hold the active plan."""
        version = await self._planner.reconciler.pin(request.version or None, caller().name)
        return pb.PinResponse(version=version)

    async def Unpin(self, request: pb.UnpinRequest, context: Any) -> pb.UnpinResponse:
        """Resume automatic planning."""
        await self._planner.reconciler.unpin()
        return pb.UnpinResponse()

    async def Rollback(self, request: pb.RollbackRequest, context: Any) -> pb.RollbackResponse:
        """Carry out an earlier plan again, and hold it."""
        if not request.version:
            raise InvalidArgument.at("version", "required, >= 1")
        plan = await self._planner.reconciler.rollback(request.version, caller().name)
        return pb.RollbackResponse(plan=to_message(plan, plan_pb2.Plan))

    async def Freeze(self, request: pb.FreezeRequest, context: Any) -> pb.FreezeResponse:
        """Replace only lost capacity until a time."""
        until = instant(request, "until")
        if until is None:
            raise InvalidArgument.at("until", "required")
        if len(request.reason) > _LONGEST_REASON:
            raise InvalidArgument.at("reason", f"must be at most {_LONGEST_REASON} characters")
        await self._planner.reconciler.freeze(Freeze(until, request.reason, caller().name))
        return pb.FreezeResponse()

    async def Unfreeze(self, request: pb.UnfreezeRequest, context: Any) -> pb.UnfreezeResponse:
        """End a freeze."""
        await self._planner.reconciler.unfreeze()
        return pb.UnfreezeResponse()

    async def GetFleet(self, request: pb.GetFleetRequest, context: Any) -> pb.GetFleetResponse:
        """Return nodes, energy, intensity and demand as they are now."""
        leadership, held = self._planner.store.leadership, self._planner.reconciler.cycle.held
        return pb.GetFleetResponse(
            nodes=[self._fleet_node(name) for name in self._planner.state.fleet.settings],
            energy_j=self._planner.account_writer.total.energy_j,
            carbon_gco2e=self._planner.account_writer.total.carbon_gco2e,
            intensity_gco2e_per_kwh=self._planner.state.intensity_gco2e_per_kwh,
            demand_rps=self._planner.state.demand_rps(),
            hold=None if held is None else to_message(held, pb.Hold),
            conditions=condition_messages(self._planner.publisher.conditions()),
            config_digest=self._planner.changes.now.file.digest,
            leader=pb.Leader(holder=leadership.holder, term=leadership.lease.term),
            plans_nothing=all(model.servers for model in self._planner.state.models),
            carbon_budgets=[
                to_message(each, pb.CarbonBudget) for each in self._planner.carbon_budgets.shown()
            ],
            carbon_budget_price_gco2e=self._planner.carbon_budgets.prices(),
            cost_eur_per_h=cost_eur_per_h(self._planner.state, self._planner.agents.devices_w()),
        )

    async def CordonNode(
        self, request: pb.CordonNodeRequest, context: Any
    ) -> pb.CordonNodeResponse:
        """Take a node out of use, or return the consequences."""
        if request.dry_run:
            self._planner.membership.check_known(request.node)
            answer = await self._planner.queries.dry_run_without(request.node)
            return pb.CordonNodeResponse(outcome=to_message(answer, pb.DryRunResponse))
        await self._planner.membership.order(request.node, caller().name, drain=request.drain)
        return pb.CordonNodeResponse()

    async def UncordonNode(
        self, request: pb.UncordonNodeRequest, context: Any
    ) -> pb.UncordonNodeResponse:
        """Take a node into use again."""
        await self._planner.membership.order(request.node, caller().name, drain=None)
        return pb.UncordonNodeResponse()

    async def ForgetNode(
        self, request: pb.ForgetNodeRequest, context: Any
    ) -> pb.ForgetNodeResponse:
        """Forget a node that joined."""
        await self._planner.membership.forget(request.node)
        return pb.ForgetNodeResponse()

    async def ReadAccount(
        self, request: pb.ReadAccountRequest, context: Any
    ) -> AsyncIterator[pb.ReadAccountResponse]:
        """Send the account's hours."""
        since, until = instant(request, "since"), instant(request, "until")
        async for entries in self._planner.queries.account(since, until, grouping_from(request.by)):
            for message in messages(entries):
                yield message

    async def ReadHistory(
        self, request: pb.ReadHistoryRequest, context: Any
    ) -> AsyncIterator[pb.ReadHistoryResponse]:
        """Send the points of a window."""
        since, until = instant(request, "since"), instant(request, "until")
        async for step_s, points in self._planner.history.read(since, until, request.step_s):
            yield await asyncio.to_thread(history_message, step_s, points)

    async def SetObjective(
        self, request: pb.SetObjectiveRequest, context: Any
    ) -> pb.SetObjectiveResponse:
        """Change the objective; the reconciler re-plans."""
        weight = request.carbon_weight if request.HasField("carbon_weight") else None
        _check_aim(weight, request.strategy)
        self._planner.state.set_objective(weight, request.strategy, caller().name)
        return pb.SetObjectiveResponse()

    async def ChangeSettings(
        self, request: pb.ChangeSettingsRequest, context: Any
    ) -> pb.ChangeSettingsResponse:
        """Change settings at run time, or return the consequences."""
        values, principal = values_from(request.values), caller().name
        changes = self._planner.changes
        if not request.dry_run:
            changed = await changes.change(values, request.reset, principal)
            return pb.ChangeSettingsResponse(changed=changed)
        new = await changes.proposed(values, request.reset, principal, may_add=True)
        outcome = await self._planner.queries.dry_run_of(new.deployment, new.models)
        changed = changes.now.changed(new)
        return pb.ChangeSettingsResponse(
            changed=changed, outcome=to_message(outcome, pb.DryRunResponse)
        )

    async def ListChangedSettings(
        self, request: pb.ListChangedSettingsRequest, context: Any
    ) -> pb.ListChangedSettingsResponse:
        """Return settings changed at run time."""
        overrides = self._planner.changes.now.overrides
        return pb.ListChangedSettingsResponse(
            settings=[
                to_message(replace(each, path=path), pb.ChangedSetting)
                for path, each in sorted(overrides.items())
            ]
        )

    async def SetGridEvent(
        self, request: pb.SetGridEventRequest, context: Any
    ) -> pb.SetGridEventResponse:
        """Announce a grid event."""
        order = from_message(request.event, GridEvent)
        event = await self._planner.grid_events.put(order, "operator", caller().name)
        return pb.SetGridEventResponse(event=to_message(event, grid_event_pb2.GridEvent))

    async def CancelGridEvent(
        self, request: pb.CancelGridEventRequest, context: Any
    ) -> pb.CancelGridEventResponse:
        """Cancel a grid event."""
        event = await self._planner.grid_events.cancel(request.event_id, caller().name)
        return pb.CancelGridEventResponse(event=to_message(event, grid_event_pb2.GridEvent))

    async def ListGridEvents(
        self, request: pb.ListGridEventsRequest, context: Any
    ) -> pb.ListGridEventsResponse:
        """Return grid events, and the sites' power."""
        its = self._planner.grid_events
        return pb.ListGridEventsResponse(
            events=[to_message(e, grid_event_pb2.GridEvent) for e in its.listed(over=request.all)],
            sites=[to_message(each, grid_event_pb2.SitePower) for each in its.sites()],
        )

    async def ReportGridEvent(
        self, request: pb.ReportGridEventRequest, context: Any
    ) -> pb.ReportGridEventResponse:
        """Return the report of a grid event."""
        found = await self._planner.grid_events.report(request.event_id)
        return pb.ReportGridEventResponse(report=to_message(found, grid_event_pb2.GridEventReport))

    async def SetPolicy(self, request: pb.SetPolicyRequest, context: Any) -> pb.SetPolicyResponse:
        """Change how routers serve a model."""
        policy = await self._planner.policies.order(
            request.model,
            request.discipline,
            request.instance_choice,
            request.intensity_threshold if request.HasField("intensity_threshold") else None,
            reset=request.reset,
        )
        await self._planner.publisher.refresh()
        return pb.SetPolicyResponse(**asdict(policy))

    async def Join(
        self, request_iterator: AsyncIterator[pb.JoinRequest], context: Any
    ) -> AsyncIterator[pb.JoinResponse]:
        """Receive an agent's reports, and send it steps."""
        planner, first = self._planner, await _first(request_iterator)
        planner.leading.check(first.term)
        await self._joining.next()  # a joining fleet must not block the loop
        if first.HasField("node"):
            node = JoinedNode(first.node.name, first.node.zone, first.address)
            await planner.membership.admit(node, caller(), context.peer())
        session = planner.agents.join(first, caller(), host_of(context.peer()))
        reading = asyncio.create_task(self._read(session, request_iterator), name="planner.join")
        try:
            await planner.membership.keep_owners()
            await planner.leading.raise_to(first.term)
            async for response in session.responses():
                yield response
            if reading.done():
                reading.result()  # the error that ended the reports ends the call
        finally:
            planner.agents.leave(session)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def ReportLoad(
        self, request_iterator: AsyncIterator[pb.ReportLoadRequest], context: Any
    ) -> pb.ReportLoadResponse:
        """Receive a router's reports."""
        planner, link = self._planner, RouterSession()
        try:
            await until(self._draining, self._read_load(link, request_iterator))
        finally:
            planner.routers.leave(link)
        return pb.ReportLoadResponse()

    async def ReportWaiting(
        self, request_iterator: AsyncIterator[waiting_pb2.ReportWaitingRequest], context: Any
    ) -> AsyncIterator[waiting_pb2.ReportWaitingResponse]:
        """Receive what waits at a batch service, and send it what is released."""
        planner, first = self._planner, await anext(aiter(request_iterator), None)
        if first is None:
            return
        planner.waiting.report(waiting_from(first), first.batch_id)
        planner.waiting.batch_services += 1
        reading = asyncio.create_task(
            until(self._draining, self._read_waiting(request_iterator)), name="planner.waiting"
        )
        try:
            sent = None
            async for said in planner.publisher.board.follow():
                if reading.done():
                    reading.result()  # the error that ended the reports ends the call
                    return
                if said.releases is not None and said.releases is not sent:
                    sent = said.releases
                    yield releases_to(sent, planner.waiting.batch_services)
        finally:
            planner.waiting.batch_services -= 1
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_waiting(
        self, requests: AsyncIterator[waiting_pb2.ReportWaitingRequest]
    ) -> None:
        async for request in requests:
            self._planner.waiting.report(waiting_from(request), request.batch_id)

    async def _read(self, session: AgentSession, requests: AsyncIterator[pb.JoinRequest]) -> None:
        agents, state = self._planner.agents, self._planner.state
        try:
            async for request in requests:
                agents.take(session, request)
                await self._planner.membership.keep_owners()
                if state.fleet.leaves(session.node) and self._is_released(session.node):
                    session.release()
                for each in request.scale_out:
                    state.need_more(each.models, plain(each.reason))
        finally:
            session.close()

    def _is_released(self, node: str) -> bool:
        """Return whether a leaving agent need not wait: all was moved, or nothing can be."""
        fleet, plan = self._planner.state.fleet, self._planner.publisher.board.value.plan
        now_s = self._planner.state.clock.monotonic()
        if not self._planner.routers.served:
            return True
        if not fleet.takes_over(node, now_s):
            return fleet.takers_awaited_s(node, now_s) <= 0
        report = fleet.node(node)
        rolling = plan is not None and plan.state in (PlanState.PROPOSED, PlanState.ROLLING)
        return not rolling and (report is None or not report.segments)

    async def _read_load(
        self, link: RouterSession, requests: AsyncIterator[pb.ReportLoadRequest]
    ) -> None:
        planner = self._planner
        async for request in requests:
            models = planner.changes.now.deployment.models.items()
            report = load_from(request, {name: each.slo.percentile for name, each in models})
            report = planner.routers.report(link, report)
            if planner.regions is not None:
                planner.account_writer.move(planner.regions.report(request, report.arrivals))
            planner.history.answered(report)
            planner.account_writer.answered(replace(report, latency_s=planner.routers.latency_s()))

    async def _check_seen(self, version: int) -> None:
        newest = await self._planner.store.newest_first(1)
        limit = newest[0].version if newest else 0
        if version > limit:
            raise InvalidArgument.at(
                "after_version", f"must be 0..{limit}, the newest plan, got {version}"
            )

    def _fleet_node(self, name: str) -> pb.FleetNode:
        fleet, report = self._planner.state.fleet, self._planner.agents.reports.get(name)
        settings, order = fleet.settings[name], fleet.orders.get(name)
        found = pb.FleetNode(
            node=inventory_pb2.Node(name=name, zone=settings.zone),
            pue=fleet.pue(name),
            joined=name in fleet.settings.joined,
            address=settings.dial,
            order=None if order is None else to_message(order, pb.NodeOrder),
        )
        if report is None:
            return found
        found.MergeFrom(
            pb.FleetNode(
                connected=fleet.connected(name),
                energy=report.energy,
                drifts=report.drifts,
                config_digest=report.config_digest,
            )
        )
        found.node.CopyFrom(report.node)
        return found


def _check_aim(carbon_weight: float | None, strategy: str) -> None:
    if carbon_weight is not None and not 0 <= carbon_weight <= 1:
        raise InvalidArgument.at("carbon_weight", f"must be 0..1, got {carbon_weight:g}")
    if strategy:
        check_strategy("strategy", strategy)


async def _first(requests: AsyncIterator[pb.JoinRequest]) -> pb.JoinRequest:
    async for request in requests:
        return request
    raise InvalidArgument.at("node", "required in the first request, which never came")

"""The planner and the carbon service of a router under test; the test decides what they say."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from cinquefoil.carbon.v1 import carbon_pb2, carbon_pb2_grpc
from cinquefoil.planner.v1 import plan_pb2, planner_pb2, planner_pb2_grpc, waiting_pb2

Context = grpc.aio.ServicerContext[Any, Any]


class ScriptedPlanner(planner_pb2_grpc.PlannerServiceServicer):
    """Sends the routing table that the test sets, and keeps the load reports."""

    def __init__(self) -> None:
        self.routing = plan_pb2.RoutingTable()
        self.discipline = "fcfs"
        self.reports: list[planner_pb2.ReportLoadRequest] = []
        self.releases: list[waiting_pb2.WaitingRelease] = []
        self.forwards: list[planner_pb2.Forward] = []
        self.sent = 0
        self._changed = asyncio.Condition()

    async def route(self, *instances: plan_pb2.Instance, choice: str = "shares") -> None:
        """Publish a table with these instances of the model "digits"."""
        model = plan_pb2.ModelRoutes(
            model="digits",
            slo_latency_s=0.5,
            slo_percentile=90,
            instance_choice=choice,
            instances=instances,
            discipline=self.discipline,
        )
        async with self._changed:
            revision = self.routing.revision + 1
            self.routing = plan_pb2.RoutingTable(revision=revision, plan_version=7, models=[model])
            self.sent += 1
            self._changed.notify_all()

    async def release(self, *releases: waiting_pb2.WaitingRelease) -> None:
        """Say how many requests that can wait may begin."""
        async with self._changed:
            self.releases = [*releases]
            self.sent += 1
            self._changed.notify_all()

    async def forward(
        self, *regions: str, rate_rps: float = 1000.0, waiting_rps: float = 0.0
    ) -> None:
        """Send that requests of "digits" may go to peer regions."""
        async with self._changed:
            self.forwards = [
                planner_pb2.Forward(
                    model="digits",
                    region=region,
                    rate_rps=rate_rps,
                    waiting_rps=waiting_rps,
                    valid=Duration(seconds=30),
                )
                for region in regions
            ]
            self.sent += 1
            self._changed.notify_all()

    async def Watch(
        self, request: planner_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[planner_pb2.WatchResponse]:
        while True:
            sent = self.sent
            yield planner_pb2.WatchResponse(
                routing=self.routing,
                releases=self.releases,
                releases_changed=bool(self.releases),
                forwards=self.forwards,
                forwards_changed=bool(self.forwards),
            )
            async with self._changed:
                while self.sent == sent:
                    await self._changed.wait()

    async def ReportWaiting(
        self,
        request_iterator: AsyncIterator[waiting_pb2.ReportWaitingRequest],
        context: Context,
    ) -> AsyncIterator[waiting_pb2.ReportWaitingResponse]:
        while True:
            sent = self.sent
            yield waiting_pb2.ReportWaitingResponse(releases=self.releases, batch_services=1)
            async with self._changed:
                while self.sent == sent:
                    await self._changed.wait()

    async def ReportLoad(
        self, request_iterator: AsyncIterator[planner_pb2.ReportLoadRequest], context: Context
    ) -> planner_pb2.ReportLoadResponse:
        async for report in request_iterator:
            self.reports.append(report)
        return planner_pb2.ReportLoadResponse()


class ScriptedCarbon(carbon_pb2_grpc.CarbonServiceServicer):
    """Sends one zone's intensity, once there is one."""

    def __init__(self, intensity_gco2e_per_kwh: float | None) -> None:
        self._intensity = intensity_gco2e_per_kwh

    async def Watch(
        self, request: carbon_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[carbon_pb2.WatchResponse]:
        response = carbon_pb2.WatchResponse(snapshot=True)
        if self._intensity is not None:
            response.intensities.add(zone="US-CAL", intensity_gco2e_per_kwh=self._intensity)
        yield response
        await asyncio.Event().wait()

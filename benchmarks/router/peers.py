"""Fakes of the router's peers: workers, planner and carbon, each as the benchmark needs it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any

import grpc

from benchmarks.router.messages import MODEL, VARIANT, ZONE, answer
from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.carbon.v1.carbon_pb2_grpc import (
    CarbonServiceServicer,
    add_CarbonServiceServicer_to_server,
)
from cinquefoil.gpuagent.v1 import worker_pb2
from cinquefoil.gpuagent.v1.worker_pb2_grpc import WorkerServiceServicer
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import (
    PlannerServiceServicer,
    add_PlannerServiceServicer_to_server,
)
from inference import grpc_service_pb2 as pb
from services.gpuagent.worker.work_messages import Frame

INTENSITY_GCO2E_PER_KWH = 200.0
_RECEIPT = worker_pb2.Receipt(
    energy_j=1.0, idle_energy_j=0.5, energy_method="model", compute_s=0.001, batch_size=1
)
_ANSWER = answer()

Context = grpc.aio.ServicerContext[Any, Any]
Responses = AsyncIterator[worker_pb2.ExecuteResponse]
Requests = AsyncIterator[worker_pb2.ExecuteRequest]


def _hello(segment_id: str, credits_: int) -> worker_pb2.ExecuteResponse:
    return worker_pb2.ExecuteResponse(
        hello=worker_pb2.Hello(
            segment_id=segment_id, model=MODEL, variant=VARIANT, credits=credits_
        )
    )


class InstantWorker:
    """Answers at once, with the same bytes; reads frames as workers do.

    Attributes:
        credits: Requests it takes at a time.
    """

    def __init__(self, segment_id: str, credits_: int) -> None:
        self.segment_id = segment_id
        self.credits = credits_

    async def Execute(  # noqa: N802 - gRPC's name
        self, request_iterator: AsyncIterator[Frame], context: Context, /
    ) -> None:
        """Turn each frame into one frame of results."""
        await context.write(_hello(self.segment_id, self.credits))
        async for frame in request_iterator:
            results = [
                worker_pb2.Result(id=work.id, response=_ANSWER, receipt=_RECEIPT)
                for work, _ in frame.work
            ]
            await context.write(worker_pb2.ExecuteResponse(results=results))


class TimedWorker(WorkerServiceServicer):
    """Takes `service_s` for a request, `credits` at a time: its capacity is a fact.

    Attributes:
        credits: Requests it computes at a time.
        service_s: Time it takes for a request.
        most: Requests it ever held at a time; more than its credits is the router's fault.
    """

    def __init__(self, segment_id: str, credits_: int, service_s: float) -> None:
        self.segment_id = segment_id
        self.credits = credits_
        self.most = 0
        self.service_s = service_s

    async def Execute(  # noqa: N802 - gRPC's name
        self, requests: Requests, _: Context
    ) -> Responses:
        """Give each request its answer, with its id, when its time has passed."""
        held: set[int] = set()
        done: asyncio.Queue[worker_pb2.Result] = asyncio.Queue()
        reader = asyncio.create_task(self._take(requests, held, done), name="worker.take")
        try:
            yield _hello(self.segment_id, self.credits)
            while True:
                results = [await done.get()]
                while not done.empty():
                    results.append(done.get_nowait())
                held.difference_update(result.id for result in results)
                yield worker_pb2.ExecuteResponse(results=results)
        finally:
            reader.cancel()

    async def _take(
        self, requests: Requests, held: set[int], done: asyncio.Queue[worker_pb2.Result]
    ) -> None:
        loop = asyncio.get_running_loop()
        async for frame in requests:
            for work in frame.work:
                held.add(work.id)
                self.most = max(self.most, len(held))
                name = pb.ModelInferRequest.FromString(work.request).id
                result = worker_pb2.Result(id=work.id, response=answer(name), receipt=_RECEIPT)
                loop.call_later(self.service_s, done.put_nowait, result)


class Planner(PlannerServiceServicer):
    """Publishes the routing table it is given, and knows which one routers use.

    Attributes:
        slo_latency_s: Of the only model.
    """

    def __init__(self, slo_latency_s: float) -> None:
        self.slo_latency_s = slo_latency_s
        self._table = plan_pb2.RoutingTable()
        self._used = 0
        self._changed = asyncio.Condition()

    async def publish(self, workers: Iterable[tuple[str, str, int]]) -> None:
        """Send requests to these, (endpoint, segment, credits), in equal shares."""
        given = list(workers)
        instances = [
            plan_pb2.Instance(
                endpoint=endpoint,
                segment_id=segment_id,
                variant=VARIANT,
                accuracy=1,
                share=1 / len(given),
                credits=credits_,
                zone=ZONE,
                pue=1,
            )
            for endpoint, segment_id, credits_ in given
        ]
        routes = plan_pb2.ModelRoutes(
            model=MODEL,
            slo_latency_s=self.slo_latency_s,
            slo_percentile=95,
            instance_choice="shares",
            instances=instances,
        )
        async with self._changed:
            revision = self._table.revision + 1
            self._table = plan_pb2.RoutingTable(
                revision=revision, plan_version=revision, models=[routes]
            )
            self._changed.notify_all()

    async def used(self) -> None:
        """Wait until a router says that it uses the newest table."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._used == self._table.revision)

    async def Watch(  # noqa: N802 - gRPC's name
        self, _: planner_pb2.WatchRequest, __: Context
    ) -> AsyncIterator[planner_pb2.WatchResponse]:
        """Send the table, then each change."""
        while True:
            sent = self._table.revision
            yield planner_pb2.WatchResponse(routing=self._table)
            async with self._changed:
                await self._changed.wait_for(partial(self._newer, sent))

    def _newer(self, revision: int) -> bool:
        return self._table.revision != revision

    async def ReportLoad(  # noqa: N802 - gRPC's name
        self, reports: AsyncIterator[planner_pb2.ReportLoadRequest], _: Context
    ) -> planner_pb2.ReportLoadResponse:
        """Take the loads in."""
        async for report in reports:
            async with self._changed:
                self._used = report.routing_revision
                self._changed.notify_all()
        return planner_pb2.ReportLoadResponse()


class Carbon(CarbonServiceServicer):
    """One zone whose intensity stays."""

    async def Watch(  # noqa: N802 - gRPC's name
        self, _: carbon_pb2.WatchRequest, __: Context
    ) -> AsyncIterator[carbon_pb2.WatchResponse]:
        """Send it."""
        response = carbon_pb2.WatchResponse(snapshot=True)
        response.intensities.add(zone=ZONE, intensity_gco2e_per_kwh=INTENSITY_GCO2E_PER_KWH)
        yield response
        await asyncio.Event().wait()


def add_control(server: grpc.aio.Server, planner: Planner) -> None:
    """Register planner and carbon."""
    add_PlannerServiceServicer_to_server(planner, server)
    carbon = Carbon()  # type: ignore[abstract]  # a router calls nothing else
    add_CarbonServiceServicer_to_server(carbon, server)

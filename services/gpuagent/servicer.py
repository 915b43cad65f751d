"""GpuAgentService: wire <-> core."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from cinquefoil.gpuagent.v1 import gpuagent_pb2_grpc as pb_grpc
from services.gpuagent.planner_link import convert
from services.gpuagent.planner_link.node_report import NodeReport
from services.gpuagent.reconfigure.transactions import Transactions
from services.kit.rpc.record_mapping import to_message

Context = grpc.aio.ServicerContext[Any, Any]


class GpuAgentServicer(pb_grpc.GpuAgentServiceServicer):
    """Reads one node, and changes it where an operator says so."""

    def __init__(self, report: NodeReport, transactions: Transactions) -> None:
        self._report = report
        self._transactions = transactions

    async def GetNode(self, request: pb.GetNodeRequest, context: Context) -> pb.GetNodeResponse:
        """Return the node as it is now."""
        software = to_message(self._report.versions, pb.Software)
        return pb.GetNodeResponse(node=await self._report.node(), software=software)

    async def GetEnergy(
        self, request: pb.GetEnergyRequest, context: Context
    ) -> pb.GetEnergyResponse:
        """Return every GPU's account."""
        return pb.GetEnergyResponse(gpus=convert.energy(self._report.accounts.list()))

    async def Reconfigure(
        self, request: pb.ReconfigureRequest, context: Context
    ) -> pb.ReconfigureResponse:
        """Bring GPUs to a desired state."""
        desired = convert.desired(request)
        done = await self._transactions.apply(
            desired, dry_run=request.dry_run, allow_gap=request.allow_gap
        )
        return convert.reconfigured(done)

    async def Reserve(
        self, request: pb.ReserveRequest, context: Context
    ) -> AsyncIterator[pb.ReserveResponse]:
        """Keep a GPU from the planner until the caller goes."""
        held = self._report.reservations.hold(request.gpu_uuid, wait=request.wait)
        async with aclosing(held):
            async for waiting_for in held:
                yield pb.ReserveResponse(waiting_for=waiting_for)

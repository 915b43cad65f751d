"""GpuAgentService: wire <-> core."""

from __future__ import annotations

from typing import Any

import grpc

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from cinquefoil.gpuagent.v1 import gpuagent_pb2_grpc as pb_grpc
from services.gpuagent.view import View

Context = grpc.aio.ServicerContext[Any, Any]


class GpuAgentServicer(pb_grpc.GpuAgentServiceServicer):
    """Reads one node."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def GetNode(self, request: pb.GetNodeRequest, context: Context) -> pb.GetNodeResponse:
        """Return the node as it is now."""
        return pb.GetNodeResponse(node=await self._view.node())

    async def GetEnergy(
        self, request: pb.GetEnergyRequest, context: Context
    ) -> pb.GetEnergyResponse:
        """Return every GPU's account."""
        return pb.GetEnergyResponse(gpus=self._view.energy())

"""Names of GPUs as people say them: node and index, "node-0/1"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cinquefoil.planner.v1.planner_pb2 import GetFleetRequest

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

GpuNames = Mapping[str, str]
"""By UUID."""

_SHORT: Final = 8


async def gpu_names(planner: PlannerServiceAsyncStub) -> GpuNames:
    """Return the names of the planner's GPUs."""
    fleet = await planner.GetFleet(GetFleetRequest())
    return {
        gpu.uuid: f"{each.node.name}/{gpu.index}" for each in fleet.nodes for gpu in each.node.gpus
    }


def gpu_name(names: GpuNames, uuid: str, node: str = "") -> str:
    """Return a GPU's name; of one that has left, its node's and the beginning of its UUID."""
    return names.get(uuid) or f"{node}/{uuid[:_SHORT]}".lstrip("/")

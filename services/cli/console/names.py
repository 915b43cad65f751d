"""Names as people say them: of GPUs ("node-0/1"), slices, and what runs on these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from cinquefoil.gpuagent.v1.inventory_pb2 import Placement
from cinquefoil.planner.v1.planner_pb2 import GetFleetRequest

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

GpuNames = Mapping[str, str]
"""By UUID."""

_SHORT: Final = 8
Part = tuple[str, str, int]
"""Model, variant, and the stage of a variant that is a pipeline, from 0."""

Namer = Callable[[str, str, int], str]


async def gpu_names(planner: PlannerServiceAsyncStub) -> GpuNames:
    """Return the names of the planner's GPUs."""
    fleet = await planner.GetFleet(GetFleetRequest())
    return {
        gpu.uuid: f"{each.node.name}/{gpu.index}" for each in fleet.nodes for gpu in each.node.gpus
    }


def gpu_name(names: GpuNames, uuid: str, node: str = "") -> str:
    """Return a GPU's name; of one that has left, its node's and the beginning of its UUID."""
    return names.get(uuid) or f"{node}/{uuid[:_SHORT]}".lstrip("/")


def namer(parts: Iterable[Part]) -> Namer:
    """Return the function that names parts; a pipeline's stages are numbered."""
    pipelines = {(model, variant) for model, variant, stage in parts if stage}

    def name(model: str, variant: str, stage: int) -> str:
        if (model, variant) not in pipelines:
            return f"{model}/{variant}"
        # No break between the word and the number: tables are narrow.
        return f"{model}/{variant} stage\N{NO-BREAK SPACE}{stage}"

    return name


def slice_name(placement: Placement) -> str:
    """Return a slice's name, for example "3g.20gb@4"."""
    return f"{placement.profile}@{placement.start}"

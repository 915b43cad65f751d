"""The clock loop's parts, from the deployment file."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.gpuagent.blueprint import Blueprint
from services.gpuagent.device import GpuInfo
from services.gpuagent.miad.governor import Governor, Tenant
from services.kit.deployment import Deployment, Node


def governors(node: Node, gpus: Iterable[GpuInfo]) -> dict[str, Governor]:
    """Return a governor for each GPU; none where the node wants no loop."""
    if node.clock_loop == "off":
        return {}
    return {gpu.uuid: Governor(gpu.uuid, gpu.model.clocks_mhz, node.clock_floor) for gpu in gpus}


def promises(deployment: Deployment) -> Callable[[Blueprint], Tenant]:
    """Return what tells of a segment what its requests were promised."""

    def promised(blueprint: Blueprint) -> Tenant:
        spec = blueprint.spec
        model = deployment.models[spec.model]
        return Tenant(
            segment_id=spec.segment_id,
            model=spec.model,
            percentile=model.slo.percentile,
            objective_s=model.slo.latency_s,
            sensitivity=model.variants[spec.variant].sensitivity(spec.stage),
            costs=blueprint.costs,
            processes=spec.processes,
        )

    return promised

"""The clock loop's parts, from the deployment file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate

from services.gpuagent.clock_loop.core.governor import GovernedSegment, Governor
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.worker_config import WorkerConfig
from services.kit.config import Deployment, Node
from services.kit.profiles.factory import load_stages
from services.kit.profiles.stage_split import latency_shares


def governors(node: Node, gpus: Iterable[GpuInfo]) -> dict[str, Governor]:
    """Return a governor for each GPU; none where the node wants no loop."""
    if node.clock_loop == "off":
        return {}
    return {gpu.uuid: Governor(gpu.uuid, gpu.model.clocks_mhz, node.clock_floor) for gpu in gpus}


def promises(deployment: Deployment) -> Callable[[WorkerConfig], GovernedSegment]:
    """Return the function that gives a segment's latency objective; reads profiles.

    A request's latency counts from when it came to the router. At a stage of a pipeline it may so
    be as long as all stages up to there may take, by the planner's split of the objective: else the
    first stage's GPU would use up, at a low clock, what the others need.
    """
    parts = {
        (name, variant_name): tuple(accumulate(latency_shares(load_stages(variant))))
        for name, model in deployment.models.items()
        for variant_name, variant in model.variants.items()
        if variant.stages
    }

    def promised(config: WorkerConfig) -> GovernedSegment:
        spec = config.spec
        model = deployment.models[spec.model]
        part = parts.get((spec.model, spec.variant), (1.0,))[spec.stage]
        return GovernedSegment(
            segment_id=spec.segment_id,
            model=spec.model,
            percentile=model.slo.percentile,
            objective_s=part * model.slo.latency_s,
            sensitivity=model.variants[spec.variant].sensitivity(spec.stage),
            costs=config.worker.costs,
            processes=spec.processes,
        )

    return promised

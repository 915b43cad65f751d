"""The clock loop of a node: reads latencies from shared memory, and lowers clocks where it may."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import numpy as np

from cinquefoil.gpuagent.v1.records import ScaleOut
from services.gpuagent.clock_loop.core.decide import GovernedSegment
from services.gpuagent.clock_loop.core.governor import SAMPLE_S, Governor
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.worker_config import WorkerConfig
from services.gpuagent.shared_memory.latency_counters import SIZES, Counts
from services.gpuagent.supervision.managed_node import ManagedNode
from services.gpuagent.supervision.segments import RunningSegment
from services.kit.config import Deployment, Node
from services.kit.errors import ServiceError
from services.kit.hardware.gpu_types import curve_of
from services.kit.profiles.factory import clock_sensitivity, latency_shares, load_stages
from services.kit.segment import gpus_of
from services.kit.telemetry import logs

_log = logs.get("clock_loop")


@dataclass(slots=True, kw_only=True)
class ClockLoop:
    """Governs the clocks of a node's GPUs.

    Attributes:
        node: Whose GPUs they are.
        governors: By GPU.
        promised: Returns the objective of a segment's requests.
        scale_out: Called when the highest clock is not enough for a GPU's load.
        reserved: GPUs on which an operator measures: their clocks follow the plans.
    """

    node: ManagedNode
    governors: Mapping[str, Governor]
    promised: Callable[[WorkerConfig], GovernedSegment]
    scale_out: Callable[[ScaleOut], None]
    reserved: Callable[[], Collection[str]] = frozenset
    _refused: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Govern until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for gpu_uuid in self.governors:
                look = partial(self.look, gpu_uuid)
                tasks.create_task(self.node.every(SAMPLE_S, look), name=f"clock {gpu_uuid}")

    async def look(self, gpu_uuid: str) -> None:
        """Sample one GPU, and set the clock that its governor wants."""
        governor = self.governors[gpu_uuid]
        ceiling_mhz = self.node.clocks.state.held_mhz.get(gpu_uuid, 0)
        running = self.node.segments.on(gpu_uuid)
        if any(each.spec.gpu_uuid != gpu_uuid for each in running):
            return  # a further GPU of a segment on several: the first one's governor sets its clock
        held = {uuid for each in running for uuid in gpus_of(each.spec)} | {gpu_uuid}
        counts = {self.promised(each.config): _counts_of(each) for each in running}
        highest_mhz = self.node.clocks.ceiling_mhz(gpu_uuid)  # a power budget may be below the plan
        governor.look(self.node.clock.monotonic(), highest_mhz, counts)
        if gpu_uuid in self.reserved():
            governor.start_again()
        if governor.scale_out is not None:
            _log.warning("the highest clock is not enough", reason=governor.scale_out.reason)
            self.scale_out(governor.scale_out)
        clock_mhz = 0 if governor.at_ceiling else governor.clock_mhz
        try:
            for uuid in sorted(held):
                await self.node.clocks.lower(uuid, clock_mhz, ceiling_mhz)
        except ServiceError as error:
            if gpu_uuid not in self._refused:
                _log.warning("clock does not follow", gpu=gpu_uuid, error=error.message)
            self._refused.add(gpu_uuid)
            governor.start_again()
        else:
            self._refused.discard(gpu_uuid)


def _counts_of(running: RunningSegment) -> Counts:
    counts: Counts = np.zeros(SIZES, np.uint64)
    for supervisor in running.supervisors:
        counts = counts + supervisor.counters.latencies(supervisor.spec.slot).read()
    return counts


def governors(node: Node, gpus: Iterable[GpuInfo]) -> dict[str, Governor]:
    """Return a governor for each GPU; none where the node wants no loop."""
    if node.clock_loop == "off":
        return {}
    found = {}
    for gpu in gpus:
        curve = curve_of(gpu.model.performance)
        if curve.measured_on != gpu.model.name:
            _log.info("clock curve is another GPU's", gpu=gpu.model.name, curve=curve.measured_on)
        clocks_mhz = gpu.model.clocks_mhz
        found[gpu.uuid] = Governor(gpu.uuid, clocks_mhz, node.clock_floor, curve=curve)
    return found


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
            sensitivity=clock_sensitivity(model.variants[spec.variant], spec.stage),
            costs=config.worker.costs,
            processes=spec.processes,
        )

    return promised

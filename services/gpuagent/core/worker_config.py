"""From a segment's spec to the configuration of its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cinquefoil.gpuagent.v1.records import SegmentSpec
from services.gpuagent.core.batch_costs import CostCurve, Costs
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.worker_spec import WorkerSpec
from services.kit.config import OnnxRuntime, Runtime, Slo
from services.kit.errors import FailedPrecondition, NotFound
from services.kit.profiles.core.profile import BatchCost, Profile, SliceShape

CLOCK_RATIOS: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
"""Clocks at which the profile is sampled; in between, costs are linear."""


VISIBLE: Final = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}
"""Variables that limit a process to GPUs, given by UUID."""

ONNX_PROVIDERS: Final = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
"""ONNX Runtime's names of the providers that the deployment file may request."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A trained network that workers run: a variant's, or of one stage of a variant.

    Attributes:
        file: Of its weights.
        profile: What batches take and cost.
        runtime: Runtime that executes it.
        slo: Latency objective of the model's requests; None: none.
        passes_on: It is a stage whose answers are the requests of a next one.
        sha256: Expected SHA-256 of the file, hexadecimal; "": not compared.
    """

    file: Path
    profile: Profile
    runtime: Runtime = field(default_factory=OnnxRuntime)
    slo: Slo | None = None
    passes_on: bool = False
    sha256: str = ""

    @property
    def gpu_provider(self) -> str:
        """ONNX Runtime's execution provider on real GPUs."""
        runtime = self.runtime
        return ONNX_PROVIDERS[runtime.provider if isinstance(runtime, OnnxRuntime) else "cuda"]


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configuration common to the workers of a segment.

    Attributes:
        spec: The segment.
        worker: Every worker's spec, but for its address, its slot and the node's settings.
        environment: Added to the workers' environment.
        idle_power_w: Each worker's share of a GPU's idle power, W: by the slice's SMs.
        sm_count: The slice's streaming multiprocessors, on each GPU.
    """

    spec: SegmentSpec
    worker: WorkerSpec
    environment: Mapping[str, str]
    idle_power_w: float
    sm_count: int


@dataclass(frozen=True, slots=True)
class WorkerConfigBuilder:
    """Builds the configurations of workers.

    Attributes:
        networks: Networks by (model, variant), one for each stage.
        simulated: The GPUs are.
    """

    networks: Mapping[tuple[str, str], tuple[Network, ...]] = field(default_factory=dict)
    simulated: bool = False

    def network(self, spec: SegmentSpec) -> Network:
        """Return the network that a segment runs.

        Raises:
            NotFound: The deployment has no such model and variant, or the variant no such stage.
        """
        stages = self.networks.get((spec.model, spec.variant))
        if stages is None:
            raise NotFound(
                f"the deployment has no variant {spec.variant!r} of model {spec.model!r}",
                field="spec.variant",
            )
        if spec.stage >= len(stages):
            raise NotFound(
                f"variant {spec.variant!r} of model {spec.model!r} has {len(stages)} stage(s), "
                f"no stage {spec.stage}",
                field="spec.stage",
            )
        return stages[spec.stage]

    def build(self, spec: SegmentSpec, *gpus: GpuInfo) -> WorkerConfig:
        """Return the configuration of a segment's workers.

        Args:
            spec: The segment.
            gpus: Its GPUs, in the spec's order.

        Raises:
            NotFound: The deployment has no such model and variant.
            FailedPrecondition: The slice does not exist, or the segment does not fit on it.
        """
        network, gpu = self.network(spec), gpus[0]
        uuids = tuple(_slice_uuid(each, spec) for each in gpus)
        slice_uuid = uuids[0]
        one, shape = (shape_of(gpu, spec.placement.profile, n) for n in (1, len(gpus)))
        share = one.sm_count / one.gpu_sm_count / spec.processes
        cores = tuple(gpu.cores[at] for at in gpu.model.geometry.span(spec.placement) if gpu.cores)
        # InfAdapter's containers: as many threads as cores. Processes share them out.
        threads = max(len(cores) // spec.processes, 1)
        on_gpu = not (self.simulated or cores)
        worker = WorkerSpec(
            segment_id=spec.segment_id,
            model=spec.model,
            variant=spec.variant,
            file=network.file,
            sha256=network.sha256,
            batch_size=spec.batch_size,
            slice_uuid=slice_uuid,
            costs=self._costs(network, shape, spec),
            charged=self.simulated,
            provider=_provider(network, gpu) if on_gpu else "CPUExecutionProvider",
            runtime=network.runtime,
            slo=network.slo,
            passes_on=network.passes_on,
            cores=cores,
            threads=threads,
            gpu_uuids=uuids,
        )
        if on_gpu:  # a process sees a MIG slice only by its UUID, and no more than one
            environment = {VISIBLE[gpu.model.maker]: ",".join(uuids)}
        else:
            environment = {"OMP_NUM_THREADS": str(threads)} if threads > 1 else {}
        return WorkerConfig(
            spec, worker, environment, gpu.model.context_power_w * share, one.sm_count
        )

    def _costs(self, network: Network, shape: SliceShape, spec: SegmentSpec) -> Costs | None:
        """Return the profile's numbers; a real GPU needs none to run a segment."""
        try:
            return tabulate(network.profile, shape, spec)
        except FailedPrecondition:
            if self.simulated:
                raise
            return None


def _provider(network: Network, gpu: GpuInfo) -> str:
    return "MIGraphXExecutionProvider" if gpu.model.maker == "amd" else network.gpu_provider


def _slice_uuid(gpu: GpuInfo, spec: SegmentSpec) -> str:
    found = dict(gpu.slices).get(spec.placement)
    if found is None:
        raise FailedPrecondition(
            f"{gpu.uuid} has no slice {spec.placement}; create it first", reason="NO_SLICE"
        )
    return found


def shape_of(gpu: GpuInfo, profile: str, gpus: int = 1) -> SliceShape:
    """Return what a profile must know of one of the GPU's slices, or of several such GPUs.

    Raises:
        KeyError: The GPU has no such slice kind.
    """
    kind = gpu.model.geometry.kind(profile)
    return SliceShape(
        gpu=gpu.model.name,
        profile=kind.name,
        compute_slices=kind.compute_slices,
        sm_count=gpus * kind.sm_count,
        gpu_sm_count=gpu.model.sm_count,
        memory_bytes=gpus * kind.memory_bytes,
        context_power_w=gpu.model.context_power_w,
        max_power_w=gpu.model.max_power_w,
        performance=gpu.model.performance,
        core_gmacs_per_s=gpu.model.core_gmacs_per_s,
    )


def tabulate(profile: Profile, shape: SliceShape, spec: SegmentSpec) -> Costs:
    """Return a profile's numbers for every batch that the segment can meet.

    Where a smaller batch, or fewer busy processes, was never measured, the next larger one that
    was stands in for it.

    Raises:
        FailedPrecondition: The segment does not fit on the slice, or was never measured there.
    """

    def cost(items: int, busy: int, clock_ratio: float) -> BatchCost:
        for processes in range(busy, spec.processes + 1):
            for size in range(items, spec.batch_size + 1):
                found = profile.batch(shape, size, processes, clock_ratio=clock_ratio)
                if found is not None:
                    return found
        raise FailedPrecondition(
            f"{spec.variant} with batch size {spec.batch_size} and {spec.processes} processes does "
            f"not fit on {shape.gpu} {shape.profile}, or was never measured there",
            reason="DOES_NOT_FIT",
        )

    def curve(ratio: float) -> CostCurve:
        table = [
            [cost(items, busy, ratio) for busy in range(1, spec.processes + 1)]
            for items in range(1, spec.batch_size + 1)
        ]
        return CostCurve(
            ratio,
            tuple(tuple(entry.latency_s for entry in row) for row in table),
            tuple(tuple(entry.energy_j for entry in row) for row in table),
        )

    return Costs(tuple(curve(ratio) for ratio in CLOCK_RATIOS))

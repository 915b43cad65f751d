"""The file that says how GPUs shall be: `version: v1`, unknown keys refused.

version: v1
gpus:
  - uuid: GPU-6b0d0c5e-...
    mig: true                     # optional: as it is
    slices: [3g.20gb@0, 2g.10gb@4]
    clock_mhz: 1200               # optional: as it is; 0: none held
    segments:
      - {id: s-1, slice: 3g.20gb@0, model: digits, variant: small, batch_size: 4, processes: 1}
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from cinquefoil.gpuagent.v1 import inventory_pb2
from services.cli.console.names import slice_name
from services.kit.config import Section
from services.kit.config.loader import ConfigError, document, mistakes
from services.kit.mig import WHOLE

Slice = Annotated[
    str, Field(pattern=r"^[^@\s]+@\d{1,3}$", description='size and start, as in "3g.20gb@4"')
]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


_COMMON = ("model", "variant", "batch_size", "processes", "stage")
"""What the file and SegmentSpec call alike."""


class Limit(Section):
    """What one process may take of its slice. Attributes: memory_bytes (bytes; 0: no bound)."""

    thread_percentage: Annotated[int, Field(ge=1, le=100)]
    memory_bytes: Annotated[int, Field(ge=0, lt=2**63)] = 0


class DesiredSegment(Section):
    """A segment that shall run.

    Attributes:
        id: Unique over time.
        slice: Where.
        limits: One per process, for MPS; empty: equal shares.
        stage: Which part of a variant that is a pipeline.
    """

    id: Annotated[str, Field(min_length=1)]
    slice: Slice
    model: Annotated[str, Field(min_length=1)]
    variant: Annotated[str, Field(min_length=1)]
    batch_size: Count = 1
    processes: Count = 1
    limits: tuple[Limit, ...] = ()
    stage: Annotated[int, Field(ge=0, le=1000)] = 0


class DesiredGpu(Section):
    """How one GPU shall be. Attributes: mig and clock_mhz (MHz) are as they are where None."""

    uuid: Annotated[str, Field(min_length=1)]
    mig: bool | None = None
    slices: tuple[Slice, ...] = ()
    clock_mhz: Annotated[int, Field(ge=0, le=100_000)] | None = None
    segments: tuple[DesiredSegment, ...] = ()


class Desired(Section):
    """How the GPUs of one node shall be; those that are not named stay as they are."""

    version: Literal["v1"]
    gpus: tuple[DesiredGpu, ...]


def read(path: Path) -> list[pb.DesiredGpu]:
    """Return the desired state in a file.

    Raises:
        ConfigError: It is missing, is not YAML, or says something not allowed; with its line.
    """
    data, tree = document(path)
    try:
        desired = Desired.model_validate(data)
    except ValidationError as error:
        raise ConfigError(path, list(mistakes(error, tree, Desired))) from error
    return [_message(gpu) for gpu in desired.gpus]


def written(node: inventory_pb2.Node) -> dict[str, Any]:
    """Return the document that describes a node's present state."""
    return {"version": "v1", "gpus": [_as_is(gpu, node.segments) for gpu in node.gpus]}


def _message(gpu: DesiredGpu) -> pb.DesiredGpu:
    return pb.DesiredGpu(
        gpu_uuid=gpu.uuid,
        mig_enabled=gpu.mig,
        slices=[_placement(each) for each in gpu.slices],
        clock_mhz=gpu.clock_mhz,
        segments=[
            inventory_pb2.SegmentSpec(
                segment_id=each.id,
                placement=_placement(each.slice),
                limits=[inventory_pb2.MpsLimit(**dict(limit)) for limit in each.limits],
                **each.model_dump(include=set(_COMMON)),
            )
            for each in gpu.segments
        ],
    )


def _placement(name: str) -> inventory_pb2.Placement:
    profile, _, start = name.rpartition("@")
    return inventory_pb2.Placement(profile=profile, start=int(start))


def _as_is(gpu: inventory_pb2.Gpu, segments: Iterable[inventory_pb2.Segment]) -> dict[str, Any]:
    slices = [slice_name(each.placement) for each in gpu.slices if each.placement.profile != WHOLE]
    found: dict[str, Any] = {"uuid": gpu.uuid, "mig": gpu.mig_enabled, "slices": slices}
    if gpu.clock_lockable:
        found["clock_mhz"] = gpu.locked_clock_mhz
    here = (segment.spec for segment in segments if segment.spec.gpu_uuid == gpu.uuid)
    found["segments"] = [_segment(spec) for spec in here]
    return found


def _segment(spec: inventory_pb2.SegmentSpec) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": spec.segment_id,
        "slice": slice_name(spec.placement),
        **{name: getattr(spec, name) for name in _COMMON},
    }
    if not spec.stage:
        del found["stage"]
    if spec.limits:
        found["limits"] = [
            {"thread_percentage": each.thread_percentage, "memory_bytes": each.memory_bytes}
            for each in spec.limits
        ]
    return found

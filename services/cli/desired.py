"""Desired state of a node's GPUs: a file, `version: v1`, unknown keys refused, and its agent.

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

import yaml
from pydantic import Field, ValidationError
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from cinquefoil.gpuagent.v1 import gpuagent_pb2 as pb
from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2
from services.cli.client import query
from services.cli.console.names import slice_name
from services.cli.console.output import show
from services.kit.config import Section
from services.kit.config.loader import ConfigError, document, mistakes
from services.kit.mig import WHOLE

Slice = Annotated[
    str, Field(pattern=r"^[^@\s]+@\d{1,3}$", description='size and start, as in "3g.20gb@4"')
]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


_COMMON = ("model", "variant", "batch_size", "processes", "stage")
"""Names that the file shares with SegmentSpec."""


class Limit(Section):
    """Limits of one process on its slice. Attributes: memory_bytes (bytes; 0: no bound)."""

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
    """Desired state of one GPU. Attributes: mig and clock_mhz (MHz) are as they are where None."""

    uuid: Annotated[str, Field(min_length=1)]
    mig: bool | None = None
    slices: tuple[Slice, ...] = ()
    clock_mhz: Annotated[int, Field(ge=0, le=100_000)] | None = None
    segments: tuple[DesiredSegment, ...] = ()


class Desired(Section):
    """Desired state of one node's GPUs; those that are not named stay as they are."""

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


APPLY_S = 900.0
"""Workers may take a minute each to load, and slices are changed one after another."""


async def export(config: Path, node: str) -> None:
    """Print the document that describes a node's present state."""
    request = pb.GetNodeRequest()
    found = await query(config, lambda clients: clients.agents[node].GetNode(request), node)
    document = written(found.node)
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=100)
    Console().out(text.rstrip(), highlight=False)


async def diff(config: Path, node: str, file: Path, *, as_json: bool) -> bool:
    """Print the steps that would be taken; return whether there are any."""
    request = pb.ReconfigureRequest(gpus=read(file), dry_run=True)
    found = await query(config, lambda clients: clients.agents[node].Reconfigure(request), node)
    show(found, lambda: rendered(found, "Would be done"), as_json=as_json)
    return bool(found.change.groups)


async def apply(config: Path, node: str, file: Path, *, allow_gap: bool, as_json: bool) -> None:
    """Bring the node's GPUs to the desired state; ctrl-c undoes everything."""
    request = pb.ReconfigureRequest(gpus=read(file), allow_gap=allow_gap)
    found = await query(
        config, lambda clients: clients.agents[node].Reconfigure(request, timeout=APPLY_S), node
    )
    title = f"Done in {found.elapsed_s:.1f} s"
    show(found, lambda: rendered(found, title), as_json=as_json)


def rendered(found: pb.ReconfigureResponse, title: str) -> Group | Table | Text:
    """Return the steps in order; those of one number happen at the same time."""
    if not found.change.groups:
        return Text("All is as desired: nothing to do.")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
    for number, group in enumerate(found.change.groups, start=1):
        for index, action in enumerate(group.actions):
            table.add_row("" if index else f"{number}.", *_words(action))
    if not found.gaps:
        return table
    models = ", ".join(found.gaps)
    warning = f"No room to start first and stop then: fewer segments for a while of {models}."
    return Group(table, Text(warning))


def _words(action: steps_pb2.Action) -> tuple[str, str, str]:
    """Return an action as verb, thing and place."""
    kind = action.WhichOneof("action") or ""
    what = getattr(action, kind)
    place = getattr(what, "gpu_uuid", "")
    match kind:
        case "create_slice" | "destroy_slice":
            words = kind.removesuffix("_slice"), slice_name(what.placement), place
        case "start_segment":
            spec = what.spec
            words = "start", f"{spec.segment_id} on {slice_name(spec.placement)}", spec.gpu_uuid
        case "lock_clock":
            words = "clock", f"{what.clock_mhz} MHz" if what.clock_mhz else "free", place
        case "set_mig_mode":
            words = "MIG mode", "on" if what.enabled else "off", place
        case _:
            words = "stop", what.segment_id, ""
    return words

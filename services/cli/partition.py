"""Cuts a model into stages, checks them against the whole, and writes them with `stages.json`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import onnx
import typer
from rich.console import Console
from rich.table import Table

from services.cli.console.output import table
from services.cli.console.quantities import seconds
from services.cli.networks import files_of, graph_of
from services.gpuagent.profiling.core.roofline import Roofline
from services.gpuagent.profiling.sensitivity.database import Database
from services.gpuagent.profiling.sensitivity.measure import Measured, missing
from services.gpuagent.profiling.sensitivity.study import Study, study
from services.kit.errors import InvalidArgument
from services.kit.hardware import gpu_types
from services.kit.operators.core.graph import Graph
from services.kit.operators.onnx_reader import load
from services.kit.operators.random_inputs import Sizes
from services.kit.plurals import counted
from services.kit.process.confined import confined
from services.kit.units import BYTES_PER_MIB
from services.planner.adapters.onnx_stages import Agreement, cut, verify
from services.planner.core.partitioning.model import Partition, Partitioning, StageObjective
from services.planner.core.partitioning.partition import PartitionRequest
from services.planner.core.partitioning.partition import partition as partitioned

_LEAST_SHARE: Final = 1e-4
"""A stage that takes no time has a share, too: shares are > 0."""


def file_name(stage: Partition) -> str:
    """Return the file that holds a stage."""
    return f"stage-{stage.index}.onnx"


def document(
    found: Partitioning, study: Study, objective: StageObjective, agreement: Agreement, folder: Path
) -> dict[str, Any]:
    """Return the document; times and sizes are of a batch, operations of an item.

    `variant` is the variant's section of the deployment file.
    """
    whole_s = study.cost.latency_s or 1.0
    return {
        "version": 1,
        "model": found.graph.name,
        "gpu": study.device,
        "method": study.method,
        "batch_size": found.graph.batch_size,
        "objective": objective,
        "threshold": found.threshold,
        "clusters": len(found.clusters),
        "verified": {"runs": agreement.runs, "worst_relative_difference": agreement.worst},
        "variant": {"stages": deployed(found, folder)},
        "stages": [_stage(each, found.graph, whole_s) for each in found.stages],
    }


def deployed(found: Partitioning, folder: Path) -> list[dict[str, Any]]:
    """Return the stages as a deployment file has them: `variants.<v>.stages`."""
    whole_s = sum(stage.latency_s for stage in found.stages) or 1.0
    return [
        {
            "file": str(folder / file_name(stage)),
            "share": round(max(stage.latency_s / whole_s, _LEAST_SHARE), 4),
            "clock_sensitivity": round(stage.clock_sensitivity, 3),
        }
        for stage in found.stages
    ]


def _stage(stage: Partition, graph: Graph, whole_s: float) -> Mapping[str, Any]:
    return {
        "file": file_name(stage),
        "inputs": _tensors(stage.inputs, graph),
        "outputs": _tensors(stage.outputs, graph),
        "operators": stage.span.stop - stage.span.start,
        "memory_bytes": stage.memory_bytes,
        "latency_s": stage.latency_s,
        "latency_share": stage.latency_s / whole_s,
        "transfer_bytes": stage.transfer_bytes,
        "sensitivity": stage.sensitivity,
        "clock_sensitivity": stage.clock_sensitivity,
        "gmacs_per_item": stage.item_flops / 2e9,
    }


def _tensors(names: Iterable[str], graph: Graph) -> list[Mapping[str, Any]]:
    tensors = (graph.tensors[name] for name in names)
    return [
        {"name": each.name, "datatype": each.datatype, "shape": list(each.declared)}
        for each in tensors
    ]


def stages_table(found: Partitioning) -> Table:
    """Return a table of a model's stages."""
    rows = table("", "stage", ">operators", ">time", ">share", ">memory", ">score", ">hands on")
    whole_s = sum(stage.latency_s for stage in found.stages) or 1.0
    for stage in found.stages:
        tensors = f"{len(stage.outputs)} x" if len(stage.outputs) > 1 else ""
        handed = f"{tensors} {stage.transfer_bytes / 1024:.0f} KiB" if stage.transfer_bytes else ""
        rows.add_row(
            str(stage.index),
            str(stage.span.stop - stage.span.start),
            seconds(stage.latency_s),
            f"{stage.latency_s / whole_s:.1%}",
            f"{stage.memory_bytes / BYTES_PER_MIB:.1f} MiB",
            f"{stage.sensitivity:.2f}",
            handed,
        )
    return rows


def deployment_lines(found: Partitioning, folder: Path) -> Iterator[str]:
    """Yield the lines of the variant in the deployment file, in place of `file`."""
    yield "stages:"
    for stage in deployed(found, folder):
        yield "  - {" + ", ".join(f"{key}: {value}" for key, value in stage.items()) + "}"


_CUT_CPU_S: Final = 3600
_MOST_BYTES: Final = 2**31 - 1
"""Protobuf's limit on a message; larger models keep weights in files of their own."""


def partition(  # noqa: PLR0913 - the options of the command
    file: Path,
    request: PartitionRequest,
    *,
    gpu: str,
    sizes: Sizes,
    database: Path,
    out: Path,
    as_json: bool,
) -> None:
    """Cut a model and print its stages; arguments are the options of the command.

    Raises:
        ServiceError: It cannot be read, or not be cut like that, or its stages answer otherwise.
    """
    graph = graph_of(file, sizes)
    times = _times(graph, gpu, database)
    found = partitioned(graph, times.costs, request)
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".cinquefoil-", dir=out) as scratch:
        agreement = confined(
            write_stages, file, found, sizes, Path(scratch),
            file=file, reads=files_of(file), scratch=Path(scratch), cpu_s=_CUT_CPU_S,
        )  # fmt: skip
        text = document(found, times, request.objective, agreement, out)
        _move(Path(scratch), out, found, json.dumps(text, indent=2))
    if as_json:
        typer.echo(json.dumps(text, indent=2))
        return
    Console().print(stages_table(found))
    typer.echo(
        f"{graph.name} on {times.device} ({times.method}), batch {graph.batch_size}, "
        f"{counted(len(found.clusters), 'cluster')} at threshold {found.threshold:g}; "
        f"answers as the whole does in {agreement.runs} runs "
        f"(apart by {agreement.worst:.1g} of the largest)"
    )
    for line in deployment_lines(found, out):
        typer.echo(line)


def _times(graph: Graph, gpu: str, file: Path) -> Study:
    """Return measured times where all are known, else the data sheet's: never some of each."""
    table = gpu_types.load(gpu)
    with Database(file) as database:
        if not missing(graph, lambda bucket: database.find(bucket, table.name, "measured")):
            return study(graph, Measured(table.name, {}), database, reuse=True)
        return study(graph, Roofline.of(table), database, reuse=False)


def write_stages(file: Path, found: Partitioning, sizes: Sizes, folder: Path) -> Agreement:
    """Write a network's stages; return how well they answer. Call it in a confined process.

    Args:
        file: The network.
        found: Its stages.
        sizes: Sizes that its graph was read at.
        folder: Where to write them.

    Raises:
        ServiceError: The stages answer otherwise than the network, or are too large.
    """
    model = load(file)
    stages = [_serialized(each) for each in cut(model, found)]
    agreement = verify(model, stages, _sizes(sizes, found.graph))
    for stage, serialized in zip(found.stages, stages, strict=True):
        (folder / file_name(stage)).write_bytes(serialized)
    return agreement


def _sizes(sizes: Sizes, graph: Graph) -> tuple[Sizes, ...]:
    """Return the sizes to check at: one item, and more items than the batch size given."""
    if not graph.batches:
        return (sizes,)
    return (Sizes(1, sizes.other), Sizes(sizes.batch + 1, sizes.other))


def _serialized(model: onnx.ModelProto) -> bytes:
    size = model.ByteSize()
    if size > _MOST_BYTES:
        raise InvalidArgument(f"{model.graph.name} has {size} bytes: more than 2 GiB in one file")
    serialized: bytes = model.SerializeToString()
    return serialized


def _move(scratch: Path, folder: Path, found: Partitioning, text: str) -> None:
    """Move the stages to their folder; stages.json last, so that what it names is there."""
    for stage in found.stages:
        (scratch / file_name(stage)).replace(folder / file_name(stage))
    (folder / "stages.json").write_text(f"{text}\n", encoding="utf-8")

"""Cuts a model, checks the stages against the whole, and writes them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import onnx
import typer
from rich.console import Console

from services.cli.partition.document import deployment_lines, document, file_name, stages_table
from services.gpuagent.core import gpu_types
from services.gpuagent.profiling.core.roofline import Roofline
from services.gpuagent.profiling.sensitivity.database import Database
from services.gpuagent.profiling.sensitivity.measure import Measured, missing
from services.gpuagent.profiling.sensitivity.study import Study, study
from services.kit.errors import InvalidArgument
from services.kit.operators.core.graph import Graph
from services.kit.operators.onnx_reader import load, read
from services.kit.operators.random_inputs import Sizes
from services.planner.adapters.onnx_stages import cut, verify
from services.planner.core.partitioning.model import Partitioning
from services.planner.core.partitioning.partition import PartitionRequest
from services.planner.core.partitioning.partition import partition as partitioned

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
    model = load(file)
    graph = read(model, file.stem, sizes)
    times = _times(graph, gpu, database)
    found = partitioned(graph, times.costs, request)
    stages = [_serialized(each) for each in cut(model, found)]
    agreement = verify(model, stages, _sizes(sizes, graph))
    told = document(found, times, request.objective, agreement, out)
    _write(out, found, stages, json.dumps(told, indent=2))
    if as_json:
        typer.echo(json.dumps(told, indent=2))
        return
    Console().print(stages_table(found))
    typer.echo(
        f"{graph.name} on {times.device} ({times.method}), batch {graph.batch_size}, "
        f"{len(found.clusters)} clusters at threshold {found.threshold:g}; answers as the whole "
        f"does in {agreement.runs} runs (apart by {agreement.worst:.1g} of the largest)"
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


def _write(folder: Path, found: Partitioning, stages: Sequence[bytes], told: str) -> None:
    """Write the files; stages.json last, so that what it names is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage, serialized in zip(found.stages, stages, strict=True):
        (folder / file_name(stage)).write_bytes(serialized)
    (folder / "stages.json").write_text(f"{told}\n", encoding="utf-8")

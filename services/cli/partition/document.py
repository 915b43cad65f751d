"""What the stages of a model are: `stages.json`, a table, and lines of a deployment file."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from services.cli.console.output import table
from services.cli.sensitivity.render import duration
from services.gpuagent.profiling.sensitivity.study import Study
from services.kit.operators.core.graph import Graph
from services.kit.units import BYTES_PER_MIB
from services.planner.adapters.onnx_stages import Agreement
from services.planner.core.partitioning.model import Partition, Partitioning, StageObjective

_LEAST_SHARE: Final = 1e-4
"""A stage that takes no time has a share, too: shares are > 0."""


def file_name(stage: Partition) -> str:
    """Return the file that holds a stage."""
    return f"stage-{stage.index}.onnx"


def document(
    found: Partitioning, study: Study, objective: StageObjective, agreement: Agreement, folder: Path
) -> dict[str, Any]:
    """Return the document; times and sizes are of a batch, operations of an item.

    `variant` is what the variant says in the deployment file.
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
            duration(stage.latency_s),
            f"{stage.latency_s / whole_s:.1%}",
            f"{stage.memory_bytes / BYTES_PER_MIB:.1f} MiB",
            f"{stage.sensitivity:.2f}",
            handed,
        )
    return rows


def deployment_lines(found: Partitioning, folder: Path) -> Iterator[str]:
    """Yield what the variant says in the deployment file, in place of `file`."""
    yield "stages:"
    for stage in deployed(found, folder):
        yield "  - {" + ", ".join(f"{key}: {value}" for key, value in stage.items()) + "}"

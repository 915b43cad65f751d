"""Stages as a table, and as lines of a deployment file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from services.cli.console.tables import table
from services.cli.partition.document import deployed
from services.cli.sensitivity.render import duration
from services.kit.units import BYTES_PER_MIB
from services.planner.core.partitioning.model import Partitioning


def stages(found: Partitioning) -> Table:
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

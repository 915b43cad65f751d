"""`cinquefoil partition`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.gpuagent_sensitivity import DATABASE, Batch, Length, Sensitivities
from services.cli.commands.options import Json
from services.cli.commands.serve import imported


class Aim(StrEnum):
    """What good stages are."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"


def partition(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The network.")],
    stages: Annotated[int, typer.Option(min=1, help="How many.")] = 2,
    gpu: Annotated[str, typer.Option(help="GPU type that will run them.")] = "a100-40gb",
    out: Annotated[Path, typer.Option(help="Folder for stage-0.onnx .. and stages.json.")] = Path(
        "out/partition"
    ),
    objective: Annotated[
        Aim, typer.Option(help="Shortest longest stage, or least handed on between stages.")
    ] = Aim.THROUGHPUT,
    threshold: Annotated[
        float, typer.Option(min=0, max=2, help="Scores in an operator cluster differ by less.")
    ] = 0.5,
    memory: Annotated[
        float | None, typer.Option(min=0, help="Most memory of a stage, MiB.")
    ] = None,
    max_tensors: Annotated[int, typer.Option(min=1, help="Most tensors handed on.")] = 4,
    max_kib: Annotated[int, typer.Option(min=1, help="Their size per item, KiB.")] = 4096,
    batch: Batch = 8,
    length: Length = 128,
    database: Sensitivities = DATABASE,
    json: Json = False,
) -> None:
    """Cut a network into stages that run one after the other, on devices of their own.

    Operators of like sensitivity to the clock stay together (mu-Serve); among the legal cuts an
    exact search finds the best. The stages are checked against the whole network before they are
    named to you. Times are those of `gpuagent sensitivity`: measured ones where the database has
    them for all operators, else the data sheet's.
    """
    from services.cli.runner import explained

    command = imported("partition", "services.cli.partition.run")
    request = command.Request.of(
        model,
        stages=stages,
        gpu=gpu,
        out=out,
        objective=objective.value,
        threshold=threshold,
        memory_mib=memory,
        max_tensors=max_tensors,
        max_item_kib=max_kib,
        batch=batch,
        length=length,
        database=database,
    )
    with explained():
        command.partition(request, as_json=json)

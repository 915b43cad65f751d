"""Finds out, prints and draws how a model's operators follow the clock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from services.cli.sensitivity import chart, render
from services.cli.sensitivity.measure import Place, measured
from services.gpuagent.core import gpu_types
from services.gpuagent.profiling.core.roofline import Roofline
from services.gpuagent.profiling.sensitivity.database import Database
from services.gpuagent.profiling.sensitivity.study import Study, study
from services.kit.operators.onnx_reader import load, read
from services.kit.operators.random_inputs import Sizes


@dataclass(frozen=True, slots=True)
class Request:
    """The options of `gpuagent sensitivity`, which explains them."""

    file: Path
    sizes: Sizes
    out: Path
    database: Path
    as_json: bool


def modelled(request: Request, gpu: str) -> None:
    """Show what the data sheet of a GPU type says.

    Raises:
        ServiceError: There is no such type, or the model cannot be read.
    """
    graph = read(load(request.file), request.file.stem, request.sizes)
    with Database(request.database) as database:
        found = study(graph, Roofline.of(gpu_types.load(gpu)), database, reuse=False)
    _show(found, request)


async def on_gpu(request: Request, place: Place) -> None:
    """Measure on a node's GPU what the database does not know, then show it.

    Raises:
        ServiceError: The agent cannot do it, or the model cannot be read.
    """
    model = load(request.file)
    graph = read(model, request.file.stem, request.sizes)
    request.out.mkdir(parents=True, exist_ok=True)  # now: measuring takes its time
    with Database(request.database) as database:
        device = await measured(model, graph, request.sizes, database, place)
        found = study(graph, device, database, reuse=True)
    _show(found, request)


def _show(found: Study, request: Request) -> None:
    request.out.mkdir(parents=True, exist_ok=True)
    picture = request.out / f"{found.graph.name}.{found.device}.png"
    chart.draw(found, picture)
    if request.as_json:
        typer.echo(json.dumps(render.document(found), indent=2))
        return
    console = Console()
    console.print(render.kinds(found))
    console.print(render.summary(found), highlight=False)
    console.print(
        f"clock_sensitivity: {found.cost.clock_sensitivity:.2f}  # for the deployment file",
        highlight=False,
    )
    console.print(f"{picture}, {request.database}", highlight=False, soft_wrap=True)

"""Measures, prints and draws the clock sensitivity of a model's operators."""

import asyncio
from pathlib import Path

import typer
from rich.console import Console

from services.cli.console.output import print_json
from services.cli.networks import graph_of
from services.cli.sensitivity import chart, render
from services.cli.sensitivity.measure import Place, measured
from services.gpuagent.profiling.core.roofline import Roofline
from services.gpuagent.profiling.sensitivity.database import Database
from services.gpuagent.profiling.sensitivity.study import study
from services.kit.hardware import gpu_types
from services.kit.operators.random_inputs import Sizes


async def sensitivity(  # noqa: PLR0913 - the options of the command
    file: Path, sizes: Sizes, on: str | Place, *, out: Path, database: Path, as_json: bool
) -> None:
    """Show a model's sensitivity, modelled or measured; measures what the database does not know.

    Args:
        file: The model.
        sizes: Sizes of the free dimensions of its inputs.
        on: A GPU type, for times by its data sheet; or the GPU to measure on.
        out: Folder of the picture.
        database: File of sensitivities.
        as_json: Print JSON instead of tables.

    Raises:
        ServiceError: There is no such type, the agent cannot do it, or the model cannot be read.
    """
    graph = await asyncio.to_thread(graph_of, file, sizes)
    await asyncio.to_thread(out.mkdir, parents=True, exist_ok=True)  # now: measuring takes its time
    with Database(database) as known:
        if isinstance(on, str):
            found = study(graph, Roofline.of(gpu_types.load(on)), known, reuse=False)
        else:
            found = study(graph, await measured(file, graph, sizes, known, on), known, reuse=True)
    picture = out / f"{found.graph.name}.{found.device}.png"
    chart.draw(found, picture)
    if as_json:
        print_json(render.document(found))
        return
    Console().print(render.kinds(found))
    typer.echo(render.summary(found))
    typer.echo(f"clock_sensitivity: {found.cost.clock_sensitivity:.2f}  # for the deployment file")
    typer.echo(f"{picture}, {database}")

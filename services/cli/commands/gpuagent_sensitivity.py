"""`cinquefoil gpuagent sensitivity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, ForceIdle, Json
from services.cli.commands.serve import NodeName, named_node

Batch = Annotated[int, typer.Option(min=1, help="Batch size, where the model leaves it free.")]
Length = Annotated[
    int, typer.Option(min=1, help="Other sizes that the model leaves free, for example tokens.")
]
Sensitivities = Annotated[Path, typer.Option("--database", help="File that stores sensitivities.")]
DATABASE = Path("out/sensitivity/sensitivity.db")


async def sensitivity(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The network.")],
    gpu: Annotated[
        str,
        typer.Option(
            help="A type (a100-40gb): modelled from its data sheet. A UUID (GPU-...): measured "
            "there. Default: measured on the node's only one."
        ),
    ] = "",
    config: Config = DEPLOYMENT,
    node: NodeName = "",
    batch: Batch = 8,
    length: Length = 128,
    out: Annotated[Path, typer.Option(help="Folder for the plot.")] = Path("out/sensitivity"),
    database: Sensitivities = DATABASE,
    force_idle: ForceIdle = False,
    json: Json = False,
) -> None:
    """Show how a network's operators depend on the GPU's clock, as a table and a plot.

    Score 0: an operator is as fast at half the clock; score 2: it takes twice as long. Measuring
    reserves the GPU and holds its clock, as `profile` does; operators that the database knows are
    not measured again.
    """
    from services.cli.sensitivity import run
    from services.cli.sensitivity.measure import Place
    from services.kit.operators.random_inputs import Sizes

    request = run.Request(model, Sizes(batch, length), out, database, as_json=json)
    if gpu and not gpu.startswith("GPU-"):
        run.modelled(request, gpu)
        return
    place = Place(config, named_node(node, config), gpu, wait=force_idle)
    await run.on_gpu(request, place)

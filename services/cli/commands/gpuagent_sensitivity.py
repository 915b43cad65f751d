"""`cinquefoil gpuagent sensitivity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, ForceIdle, Json
from services.cli.commands.serve import NodeName, named_node

Batch = Annotated[int, typer.Option(min=1, help="Items, where the model leaves it free.")]
Length = Annotated[
    int, typer.Option(min=1, help="Other sizes that the model leaves free: tokens of a text.")
]
Sensitivities = Annotated[Path, typer.Option("--database", help="File that keeps sensitivities.")]
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
    """Say how each operator of a network follows the GPU's clock, and draw it.

    A score of 0: half the clock costs it nothing; of 2: it takes twice as long. Measuring reserves
    the GPU and holds its clock, as `profile` does; operators that the database knows are not
    measured again.
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

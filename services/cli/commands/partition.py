"""`cinquefoil partition`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cli.commands.gpuagent import DATABASE, Batch, Length, Sensitivities
from services.cli.commands.options import Json


def partition(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The network.")],
    stages: Annotated[int, typer.Option(min=1, help="Number of stages.")] = 2,
    gpu: Annotated[str, typer.Option(help="GPU type that will run them.")] = "a100-40gb",
    out: Annotated[Path, typer.Option(help="Folder for stage-0.onnx .. and stages.json.")] = Path(
        "out/partition"
    ),
    objective: Annotated[
        Literal["throughput", "latency"],
        typer.Option(
            help="throughput: shortest longest stage; latency: least data between stages."
        ),
    ] = "throughput",
    threshold: Annotated[
        float,
        typer.Option(min=0, max=2, help="Maximum difference of scores within an operator cluster."),
    ] = 0.5,
    memory: Annotated[
        float | None, typer.Option(min=0, help="Maximum memory of a stage, MiB.")
    ] = None,
    max_tensors: Annotated[
        int, typer.Option(min=1, help="Maximum number of tensors between stages.")
    ] = 4,
    max_kib: Annotated[
        int, typer.Option(min=1, help="Maximum size of those tensors per item, KiB.")
    ] = 4096,
    batch: Batch = 8,
    length: Length = 128,
    database: Sensitivities = DATABASE,
    json: Json = False,
) -> None:
    """Cut a network into stages that run one after the other, each on its own device.

    Operators of similar sensitivity to the clock stay together (mu-Serve); an exact search finds
    the best of the legal cuts. The stages are checked against the whole network before they are
    written. Times are those of `gpuagent sensitivity`: measured ones where the database has
    them for all operators, else the data sheet's.
    """
    from services.cli.partition import partition as work
    from services.kit.operators.random_inputs import Sizes
    from services.kit.units import BYTES_PER_MIB
    from services.planner.core.partitioning.model import CutRules
    from services.planner.core.partitioning.partition import PartitionRequest

    wanted = PartitionRequest(
        stages,
        objective,
        threshold,
        None if memory is None else round(memory * BYTES_PER_MIB),
        CutRules(max_tensors, max_kib * 1024),
    )
    sizes = Sizes(batch, length)
    work(model, wanted, gpu=gpu, sizes=sizes, database=database, out=out, as_json=json)

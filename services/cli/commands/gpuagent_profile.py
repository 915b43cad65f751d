"""`cinquefoil gpuagent profile`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from services.cli.commands.options import DEPLOYMENT, Config, ForceIdle
from services.cli.commands.serve import NodeName, named_node

DIFFERS = 3
"""Exit status of `--compare` where the tables differ."""

Tables = tuple[Path, Path]
Number = TypeVar("Number", int, float)


async def profile(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL...", help="A model, or model/variant, of the deployment."),
    ] = None,
    config: Config = DEPLOYMENT,
    node: NodeName = "",
    gpu: Annotated[
        str, typer.Option(help="UUID of the GPU to measure on. Default: the node's only one.")
    ] = "",
    slices: Annotated[str, typer.Option(help="For example 1g.5gb,3g.20gb. Default: all.")] = "",
    batch: Annotated[str, typer.Option(help="Default: planner.batch_sizes.")] = "",
    processes: Annotated[str, typer.Option(help="Default: 1 to planner.max_processes.")] = "",
    clocks: Annotated[
        str,
        typer.Option(
            help="Ratios of the highest clock; 1 is always measured. Default: planner.clock_ratios."
        ),
    ] = "",
    seconds: Annotated[float, typer.Option(min=0.1, help="Minimum time per point.")] = 2.0,
    too_slow: Annotated[
        float,
        typer.Option(
            min=0, help="Multiple of the SLO latency above which slower points are skipped."
        ),
    ] = 2.0,
    out: Annotated[Path, typer.Option(help="Folder for tables.")] = Path("out/profiles"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue with what OUT holds.")] = False,
    force_idle: ForceIdle = False,
    compare: Annotated[
        Tables | None,
        typer.Option(metavar="A B", help="Measure nothing: print where two tables differ."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Relative tolerance of --compare.")
    ] = 0.05,
) -> None:
    """Measure how models run on one GPU, and write tables that the planner reads.

    The agent reserves the GPU and restores it afterwards. Slices, batch sizes, processes and clocks
    that cannot matter are left out. Every point is on disk before the next begins:
    after ctrl-c, --resume continues.
    """
    from services.cli.profile import run
    from services.cli.profile.request import Request
    from services.gpuagent.profiling.core.samples import Effort

    if compare is not None:
        if run.compare(*compare, tolerance):
            raise typer.Exit(DIFFERS)
        return
    if not models:
        raise typer.BadParameter("name at least one model", param_hint="MODEL...")
    request = Request(
        models=tuple(models),
        gpu=gpu,
        slices=tuple(filter(None, slices.split(","))),
        batch_sizes=_listed(batch, int, "--batch"),
        processes=_listed(processes, int, "--processes"),
        clock_ratios=_listed(clocks, float, "--clocks"),
        out=out,
        resume=resume,
        force_idle=force_idle,
        too_slow=too_slow,
        effort=Effort(least_s=seconds, most_s=5 * seconds),
    )
    await run.profile(config, named_node(node, config), request)


def _listed(text: str, number: Callable[[str], Number], option: str) -> tuple[Number, ...]:
    try:
        return tuple(number(part) for part in text.split(",") if part)
    except ValueError:
        raise typer.BadParameter("numbers with commas between", param_hint=option) from None

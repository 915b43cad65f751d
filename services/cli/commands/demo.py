"""`cinquefoil demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config


async def demo(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    config: Config = DEPLOYMENT,
    seconds: Annotated[
        float, typer.Option(min=1, max=600, help="How long the simulated day takes, seconds.")
    ] = 60.0,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Requests per second to each suite. Default: the file's demand."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for report, chart and logs.")] = Path(
        "out/demo"
    ),
    seed: Annotated[int, typer.Option(help="Random seed of the arrivals.")] = 0,
    train_only: Annotated[
        bool, typer.Option("--train-only", help="Train the models and stop.")
    ] = False,
) -> None:
    """Serve a day of the grid in a minute, twice: as BASE and as Cinquefoil.

    Trains a family of real models, starts both suites on simulated GPUs, sends both the same
    requests at the same moments, and reports what it saved. Where there is no cinquefoil.yaml, the
    example is written first. Exit status 1 if a request was lost.
    """
    from services.cli.demo.run import Options, train
    from services.cli.demo.run import demo as work
    from services.local.example import write_missing

    if config == DEPLOYMENT and not config.exists():
        written = write_missing(config.parent)
        typer.echo(f"No {config} here: wrote the example, {', '.join(map(str, written))}")
    if train_only:
        await train(config)
    elif not await work(config, Options(seconds=seconds, rate_rps=rate, out=out, seed=seed)):
        raise typer.Exit(1)

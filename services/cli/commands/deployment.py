"""`cinquefoil init|up|status|health|demo`: a whole deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write into.", file_okay=False)] = Path(),
) -> None:
    """Write the example deployment, cinquefoil.yaml, and its client, infer.py, into a folder.

    Existing files are kept. `cinquefoil up` starts what the file describes.
    """
    from services.local.example import write_missing

    folder.mkdir(parents=True, exist_ok=True)
    written = write_missing(folder)
    typer.echo(f"wrote {', '.join(map(str, written))}" if written else "every file exists already")


async def up(
    config: Config = DEPLOYMENT,
    logs: Annotated[
        Path | None, typer.Option(help="Folder of the services' logs. Default: out/logs.")
    ] = None,
) -> None:
    """Start every service of the deployment here and keep it running; ctrl-c stops it.

    Each service is a process of its own and is restarted when it crashes. Models of the demo that
    the file names and that do not exist yet are trained first.
    """
    from services.cli.up.run import up as work

    await work(config, logs or config.parent / "out/logs")


async def status(
    config: Config = DEPLOYMENT,
    json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until ctrl-c.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between refreshes.")] = 1.0,
) -> None:
    """Show zones, GPUs with their slices, models with their variants, energy and carbon.

    A service that does not answer is named, and the other services' part is shown; the exit status
    is then 1.
    """
    from services.cli.status.show import follow, show

    if watch:
        await follow(config, as_json=json, interval_s=interval)
    elif not await show(config, as_json=json):
        raise typer.Exit(1)


async def health(
    service: Annotated[
        str, typer.Argument(help="carbon, planner, predictor, router, or a node's name.")
    ],
    config: Config = DEPLOYMENT,
) -> None:
    """Check that one service serves (grpc.health.v1); exit status 1 where it does not."""
    from services.cli.client import check

    await check(config, service)
    typer.echo("serving")


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
    from services.cli.demo.run import demo as work
    from services.cli.demo.run import train
    from services.local.example import write_missing

    if config == DEPLOYMENT and not config.exists():
        written = write_missing(config.parent)
        typer.echo(f"No {config} here: wrote the example, {', '.join(map(str, written))}")
    if train_only:
        await train(config)
    elif not await work(config, out, seconds=seconds, rate_rps=rate, seed=seed):
        raise typer.Exit(1)

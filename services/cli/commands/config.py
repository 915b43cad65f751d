"""`cinquefoil config check|schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="config", help="The deployment file.", no_args_is_help=True)


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(help="Deployment file.")] = None,
) -> None:
    """Say what is wrong with a deployment file, line by line; exit status 2 if anything is."""
    from services.cli.config.check import check as mistakes_of
    from services.cli.runner import explained
    from services.kit.config.loader import ConfigError, config_path, load

    path = config_path(file)
    with explained():
        deployment = load(path)
        mistakes = mistakes_of(path, deployment)
        if mistakes:
            raise ConfigError(path, mistakes)
    typer.echo(
        f"{path}: fine ({len(deployment.carbon.zones)} zones, {len(deployment.nodes)} nodes, "
        f"{len(deployment.models)} models)"
    )


@app.command()
def schema() -> None:
    """Print the JSON schema of the deployment file, for editors."""
    import json

    from services.kit.config import Deployment

    typer.echo(json.dumps(Deployment.model_json_schema(), indent=2))

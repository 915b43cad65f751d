"""`cinquefoil config check|schema`."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT

app = typer.Typer(
    name="config", help="Checks the deployment file, and prints its schema.", no_args_is_help=True
)


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(envvar="CINQUEFOIL_CONFIG", help="Deployment file.")
    ] = DEPLOYMENT,
) -> None:
    """Check a deployment file and print mistakes with their lines; exit status 2 if any exist."""
    from services.cli.config.check import check as mistakes_of
    from services.kit.conditions import control_off
    from services.kit.config.loader import ConfigError, load

    deployment = load(file)
    mistakes = mistakes_of(file, deployment)
    if mistakes:
        raise ConfigError(file, mistakes)
    typer.echo(
        f"{file}: fine ({len(deployment.carbon.zones)} zones, {len(deployment.nodes)} nodes, "
        f"{len(deployment.models)} models)"
    )
    for name, node in deployment.nodes.items():
        if not node.controlled:
            typer.echo(f"but {control_off(name)}")


@app.command()
def schema() -> None:
    """Print the JSON schema of the deployment file, for editors."""
    import json

    from services.kit.config import Deployment

    typer.echo(json.dumps(Deployment.model_json_schema(), indent=2))

"""`cinquefoil config ...`: the deployment file, and changes of its settings at run time."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json, group

app = group(
    "config",
    "Checks the deployment file and prints its schema; changes settings at run time.\n\n"
    "A service reads its file again at SIGHUP, and when a link on its path leads elsewhere.",
)


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(envvar="CINQUEFOIL_CONFIG", help="Deployment file.")
    ] = DEPLOYMENT,
    files: Annotated[
        bool, typer.Option("--files/--no-files", help="Also check the files that it names.")
    ] = True,
) -> None:
    """Check a deployment file and print mistakes with their lines; exit status 2 if any exist.

    Values that are allowed and unlikely are doubted, and do not change the exit status.
    """
    from services.cli.config.check import check as mistakes_of
    from services.cli.config.doubts import doubts
    from services.kit.conditions import control_off
    from services.kit.config.loader import ConfigError, load
    from services.kit.plurals import counted

    deployment = load(file)
    mistakes, doubtful = mistakes_of(file, deployment, files=files), doubts(file, deployment)
    if mistakes:
        raise ConfigError(file, sorted((*mistakes, *doubtful), key=lambda each: each.line))
    typer.echo(
        f"{file}: fine ({counted(len(deployment.carbon.zones), 'zone')}, "
        f"{counted(len(deployment.nodes), 'node')}, {counted(len(deployment.models), 'model')})"
    )
    for doubt in doubtful:
        typer.echo(f"doubtful: {doubt}")
    for name, node in deployment.nodes.items():
        if not node.controlled:
            typer.echo(f"but {control_off(name)}")


@app.command()
def schema() -> None:
    """Print the JSON schema of the deployment file, for editors."""
    import json

    from services.kit.config import Deployment

    typer.echo(json.dumps(Deployment.model_json_schema(), indent=2))


DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would change, and the plan that follows.")
]


@app.command("set")
async def set_(
    settings: Annotated[list[str], typer.Argument(metavar="PATH=VALUE", help="Repeatable; YAML.")],
    dry_run: DryRun = False,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Change settings in force, over restarts too, and plan again.

    Of models: demand_rps, overload_weight and slo; planner.strategy and planner.objective. null
    stops serving a model or variant. New models and variants come with the file, by reload.

    For example:

    - `cinquefoil config set models.digits.slo.latency_s=0.2 --dry-run`
    - `cinquefoil config set planner.objective.accuracy_floor=0.97`
    - `cinquefoil config set models.digits.variants.svc=null`
    """
    from services.cli.plan.settings import change, settings_of

    await change(config, settings_of(settings), (), dry_run=dry_run, as_json=json)


@app.command()
async def unset(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Setting; repeatable.")],
    dry_run: DryRun = False,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Reset settings, with all below them, to the values of the deployment file."""
    from services.cli.plan.settings import change

    await change(config, {}, paths, dry_run=dry_run, as_json=json)


@app.command()
async def changed(
    config: Config = DEPLOYMENT,
    json: Json = False,
    yaml: Annotated[
        bool,
        typer.Option("--yaml", help="As sections of the deployment file; null: to be removed."),
    ] = False,
) -> None:
    """List the settings that were changed at run time, by whom and when.

    For example, to keep them once the database is gone: `cinquefoil config changed --yaml`, put
    into the deployment file, then `cinquefoil config unset models planner`.
    """
    from services.cli.plan.settings import show_changed, show_changed_sections

    if yaml:
        await show_changed_sections(config)
    else:
        await show_changed(config, as_json=json)
